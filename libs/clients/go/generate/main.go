// Command generate makes Go of proto files without a protoc on the machine: it compiles them with protocompile and hands
// them to the two usual plugins, which the go command builds.
//
//	go run ./generate PROTO_DIR OUT_DIR
package main

import (
	"bytes"
	"context"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/bufbuild/protocompile"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/pluginpb"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) != 3 {
		log.Fatal("usage: generate PROTO_DIR OUT_DIR")
	}
	if err := generate(os.Args[1], os.Args[2]); err != nil {
		log.Fatal(err)
	}
}

func generate(protoDir, outDir string) error {
	paths, err := filepath.Glob(filepath.Join(protoDir, "eddyline", "v1", "*.proto"))
	if err != nil || len(paths) == 0 {
		return fmt.Errorf("no proto files in %s: %v", protoDir, err)
	}
	request := &pluginpb.CodeGeneratorRequest{Parameter: proto.String("paths=source_relative")}
	for _, path := range paths {
		request.FileToGenerate = append(request.FileToGenerate, "eddyline/v1/"+filepath.Base(path))
	}
	resolver := protocompile.WithStandardImports(&protocompile.SourceResolver{ImportPaths: []string{protoDir}})
	compiler := protocompile.Compiler{Resolver: resolver}
	files, err := compiler.Compile(context.Background(), request.FileToGenerate...)
	if err != nil {
		return err
	}
	taken := map[string]bool{}
	for _, file := range files {
		take(request, file, taken)
	}
	for _, plugin := range []string{"protoc-gen-go", "protoc-gen-go-grpc"} {
		if err := run(plugin, request, outDir); err != nil {
			return fmt.Errorf("%s: %w", plugin, err)
		}
	}
	return nil
}

// take puts a file behind those it imports, as plugins ask for.
func take(request *pluginpb.CodeGeneratorRequest, file protoreflect.FileDescriptor, taken map[string]bool) {
	if taken[file.Path()] {
		return
	}
	taken[file.Path()] = true
	for i := range file.Imports().Len() {
		take(request, file.Imports().Get(i).FileDescriptor, taken)
	}
	request.ProtoFile = append(request.ProtoFile, protodesc.ToFileDescriptorProto(file))
}

func run(plugin string, request *pluginpb.CodeGeneratorRequest, outDir string) error {
	input, err := proto.Marshal(request)
	if err != nil {
		return err
	}
	command := exec.Command("go", "tool", plugin)
	command.Stdin = bytes.NewReader(input)
	command.Stderr = os.Stderr
	output, err := command.Output()
	if err != nil {
		return err
	}
	var response pluginpb.CodeGeneratorResponse
	if err := proto.Unmarshal(output, &response); err != nil {
		return err
	}
	if response.Error != nil {
		return fmt.Errorf("%s", response.GetError())
	}
	for _, file := range response.File {
		path := filepath.Join(outDir, filepath.FromSlash(file.GetName()))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(file.GetContent()), 0o644); err != nil {
			return err
		}
	}
	return nil
}
