// Package proto is the wire format in Go, as protoc makes it from mete.proto (what
// agents send) and states.proto (what servers send).
//
// The enum of resources there is written from usage.All, the one list. What is
// generated does not name protoc's own version, so that each version makes the
// same.
package proto

//go:generate go test . -run=^TestResources$ -count=1 -update
//go:generate sh -c "protoc --plugin=protoc-gen-go=$(go tool -n protoc-gen-go) --go_out=. --go_opt=paths=source_relative mete.proto states.proto"
//go:generate sed -i "/^\\/\\/ \tprotoc  *v/d" mete.pb.go states.pb.go
//go:generate sh -c "sha256sum proto.go *.proto *.pb.go > generated.sum"
