package wire_test

import (
	"fmt"
	"strings"
	"testing"

	pb "google.golang.org/protobuf/proto"

	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/proto"
)

// The texts of a name fit into 8 KiB, whether this program or an earlier version encoded it: the
// batch is taken, and what groups workloads is kept first.
func TestLongName(t *testing.T) {
	id := workload.NewID("n", workload.Path, "p")
	labels := map[string]string{"io.kubernetes.pod.namespace": "shop", "io.kubernetes.pod.name": "web-1"}
	for i := range 30 {
		labels[fmt.Sprintf("a%02d", i)] = strings.Repeat("x", 4000)
	}
	long := batch.Name{ID: id, Key: "k", Name: strings.Repeat("n", 3000), Job: "build", User: "root", Project: "p", Path: strings.Repeat("/", 4096), Labels: labels}
	raw, ok := id.Bytes()
	if !ok {
		t.Fatal(id)
	}
	stream := make([]byte, 16)
	earlier, err := pb.Marshal(&proto.Batch{Version: 1, Stream: stream, Number: 1, Names: []*proto.Name{{Id: raw[:], Key: long.Key, Name: long.Name, Job: long.Job,
		User: long.User, Project: long.Project, Path: long.Path, Labels: labels}}})
	if err != nil {
		t.Fatal(err)
	}
	for what, sent := range map[string][]byte{
		"this version": encode(t, &batch.Batch{Names: []batch.Name{long}}), "an earlier version": frame(t, earlier),
	} {
		if n := len(content(t, sent)); what == "this version" && n > 9<<10 {
			t.Errorf("this version sends %d bytes", n)
		}
		b, err := wire.Decode(sent, wire.Default())
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		n := &b.Names[0]
		size := len(n.Key) + len(n.Name) + len(n.Job) + len(n.User) + len(n.Project) + len(n.Path)
		for k, v := range n.Labels {
			size += len(k) + len(v)
		}
		if size > 8<<10 {
			t.Errorf("%s: texts of %d bytes", what, size)
		}
		if n.Name != long.Name || n.Job != "build" || n.Path != long.Path || len(n.Labels) != 2 || n.Labels["io.kubernetes.pod.namespace"] != "shop" {
			t.Errorf("%s: name of %d bytes, job %q, path of %d bytes, %d labels", what, len(n.Name), n.Job, len(n.Path), len(n.Labels))
		}
	}
}
