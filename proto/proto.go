// Package proto holds the Go code that protoc generates from mete.proto (batches of agents)
// and states.proto (row states of servers).
//
// The enum of resources in mete.proto is generated from usage.All, the one list. The generated
// code omits the version of protoc, so that all versions generate the same.
package proto

//go:generate go test . -run=^TestResources$ -count=1 -update
//go:generate sh -c "protoc --plugin=protoc-gen-go=$(go tool -n protoc-gen-go) --go_out=. --go_opt=paths=source_relative mete.proto states.proto"
//go:generate sed -i "/^\\/\\/ \tprotoc  *v/d" mete.pb.go states.pb.go
//go:generate sh -c "sha256sum proto.go *.proto *.pb.go > generated.sum"
