package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// bearer is an access key. It goes with each call, also without TLS, which a cluster on loopback is.
type bearer string

func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(b)}, nil
}

func (b bearer) RequireTransportSecurity() bool { return false }

// accessOf says how the client gets in: an access key and TLS, from the variables that the Python client takes. TLS is
// used where EDDYLINE_TLS_CA names the authority, or with EDDYLINE_TLS=true, which goes by those of the system.
func accessOf(environment func(string) string) ([]grpc.DialOption, error) {
	transport := insecure.NewCredentials()
	if ca := environment("EDDYLINE_TLS_CA"); ca != "" {
		byAuthority, err := credentials.NewClientTLSFromFile(ca, "")
		if err != nil {
			return nil, usageError{fmt.Sprintf("EDDYLINE_TLS_CA cannot be used: %v", err)}
		}
		transport = byAuthority
	} else if slices.Contains([]string{"1", "true", "yes", "on"}, strings.ToLower(environment("EDDYLINE_TLS"))) {
		transport = credentials.NewTLS(nil)
	}
	options := []grpc.DialOption{grpc.WithTransportCredentials(transport)}
	secret, file := environment("EDDYLINE_KEY"), environment("EDDYLINE_KEY_FILE")
	if secret == "" && file != "" {
		content, err := os.ReadFile(file)
		if err != nil {
			return nil, usageError{fmt.Sprintf("EDDYLINE_KEY_FILE cannot be used: %v", err)}
		}
		secret = string(content)
	}
	if secret != "" {
		options = append(options, grpc.WithPerRPCCredentials(bearer(strings.TrimSpace(secret))))
	}
	return options, nil
}
