// Package eddylinev1 is generated from the proto files: `go generate` in the module's root puts it here.
package eddylinev1
