package bpf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/model/fault"
)

// Go types have the layout of the C types.
func TestLayouts(t *testing.T) {
	for _, c := range []struct{ goType, cType any }{
		{Row{}, walkRow{}},
		{Task{}, taskTask{}},
		{Count{}, countSlot{}},
		{Counts{}, countEvent{}.N},
		{ClassKey{}, countClassKey{}},
		{ClassCounts{}, countClassCounts{}},
	} {
		a, b := flatten(reflect.TypeOf(c.goType), 0), flatten(reflect.TypeOf(c.cType), 0)
		if !reflect.DeepEqual(a, b) {
			t.Errorf("%T has layout\n%v, in C\n%v", c.goType, a, b)
		}
	}
}

// flatten returns the offset and size of every number in a type.
func flatten(t reflect.Type, at uintptr) (out [][2]uintptr) {
	switch t.Kind() {
	case reflect.Struct:
		for f := range t.Fields() {
			out = append(out, flatten(f.Type, at+f.Offset)...)
		}
	case reflect.Array:
		for i := range uintptr(t.Len()) {
			out = append(out, flatten(t.Elem(), at+i*t.Elem().Size())...)
		}
	default:
		out = append(out, [2]uintptr{at, t.Size()})
	}
	return out
}

func TestValidate(t *testing.T) {
	for _, c := range []struct {
		cfg Config
		ok  bool
	}{
		{Default(), true},
		{Config{}, false},
		{Config{Parts: 1 << 7, Groups: 1}, false},
		{Config{Parts: Walks}, true},
		{Config{Parts: Forks}, false},
		{Config{Parts: Forks, Groups: 1}, true},
		{Config{Parts: Events, Groups: 1, Ring: 3 * os.Getpagesize()}, false},
		{Config{Parts: Events, Groups: 1, Ring: os.Getpagesize() / 2}, false},
		{Config{Parts: Events, Groups: 1, Ring: os.Getpagesize()}, true},
	} {
		err := c.cfg.Validate()
		if (err == nil) != c.ok || err != nil && !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%+v.Validate() = %v, want valid %v", c.cfg, err, c.ok)
		}
	}
}

func TestPartString(t *testing.T) {
	for p, want := range map[Part]string{0: "", Disk: "disk", Walks | Tasks: "walks+tasks"} {
		if got := p.String(); got != want {
			t.Errorf("Part(%d).String() = %q, want %q", p, got, want)
		}
	}
}

func TestClassify(t *testing.T) {
	for _, c := range []struct{ err, want error }{
		{nil, nil},
		{fmt.Errorf("load: %w", unix.EPERM), fault.ErrDenied},
		{os.ErrPermission, fault.ErrDenied},
		{&ebpf.VerifierError{Cause: unix.EACCES, Log: []string{"bad"}}, fault.ErrUnsupported},
		{&ebpf.VerifierError{Cause: unix.EPERM}, fault.ErrDenied},
		{ebpf.ErrNotSupported, fault.ErrUnsupported},
		{fault.ErrDenied, fault.ErrDenied},
	} {
		got := classify(c.err)
		if !errors.Is(got, c.want) || c.err != nil && !errors.Is(got, c.err) {
			t.Errorf("classify(%v) = %v, want %v", c.err, got, c.want)
		}
	}
}

// A ring returns records in order across its end, skips discarded ones and stops at an
// unfinished one.
func TestRingRecords(t *testing.T) {
	const size = 64
	var pos [2]uint64
	r := ring{consumer: &pos[0], producer: &pos[1], records: make([]byte, size), mask: size - 1}
	put := func(head uint32, body string) {
		at := pos[1] & r.mask
		for i := range 8 + (len(body)+7)&^7 {
			v := byte(0)
			switch {
			case i < 4:
				v = byte((head | uint32(len(body))) >> (8 * i))
			case i >= 8 && i-8 < len(body):
				v = body[i-8]
			}
			r.records[(at+uint64(i))&r.mask] = v
		}
		pos[1] += uint64(8 + (len(body)+7)&^7)
	}
	take := func() string {
		rec, end := r.next()
		s := string(rec)
		if rec != nil {
			pos[0] = end
		}
		return s
	}
	if got := take(); got != "" {
		t.Errorf("empty ring has %q", got)
	}
	for i := range 20 {
		want := strings.Repeat(string(rune('a'+i)), 1+i%17)
		put(ringDiscard, "no")
		put(0, want)
		if got := take(); got != want {
			t.Errorf("record %d = %q, want %q", i, got, want)
		}
	}
	// An event that continues at the start of the ring.
	r.records = make([]byte, 256)
	r.mask, pos = 255, [2]uint64{176, 176}
	put(0, string(make([]byte, eventHeader))+"/in/two/parts")
	rec, _ := r.next()
	var e Event
	if !e.decode(rec) || string(e.Path) != "/in/two/parts" {
		t.Errorf("a split event has the path %q", e.Path)
	}
	pos[0] = pos[1]
	put(ringBusy, "later")
	if got := take(); got != "" {
		t.Errorf("unfinished record %q", got)
	}
	if (&Event{}).decode(make([]byte, eventHeader-1)) {
		t.Error("a record that is too short was decoded")
	}
}

// Needed types have the same layout as in the full BTF.
func TestNeededTypes(t *testing.T) {
	all, err := btf.LoadKernelSpec()
	if err != nil {
		t.Skip(err)
	}
	object, err := loadCount()
	if err != nil {
		t.Fatal(err)
	}
	few, err := neededTypes(object.Types)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"task_struct", "cgroup", "css_set", "request", "bio", "kernfs_node"} {
		var a, b *btf.Struct
		if err := errors.Join(all.TypeByName(name, &a), few.TypeByName(name, &b)); err != nil {
			t.Error(err)
			continue
		}
		if got, want := members(t, b, ""), members(t, a, ""); got != want {
			t.Errorf("%s:\n%s\nwant\n%s", name, got, want)
		}
	}
	var e *btf.Enum
	if err := few.TypeByName("cgroup_subsys_id", &e); err != nil || len(e.Values) == 0 {
		t.Errorf("enum cgroup_subsys_id: %v, %v", e, err)
	}
	n := 0
	for _, err := range few.All() {
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	if n > 10000 {
		t.Errorf("%d types, want few", n)
	}
}

// members lists the members of s with offsets and sizes, and theirs.
func members(t *testing.T, s *btf.Struct, indent string) string {
	var b strings.Builder
	for _, m := range s.Members {
		size := -1
		if _, ok := btf.UnderlyingType(m.Type).(*btf.Pointer); !ok {
			n, err := btf.Sizeof(m.Type)
			if err != nil {
				t.Errorf("%s: %v", m.Name, err)
			}
			size = n
		}
		fmt.Fprintf(&b, "%s%s %d %d %d\n", indent, m.Name, m.Offset, m.BitfieldSize, size)
		if in, ok := btf.UnderlyingType(m.Type).(*btf.Struct); ok {
			b.WriteString(members(t, in, indent+" "))
		}
	}
	return b.String()
}

// Reading arbitrary BTF does not panic.
func FuzzSieve(f *testing.F) {
	var b btf.Builder
	num := &btf.Int{Name: "int", Size: 4}
	inner := &btf.Union{Size: 8, Members: []btf.Member{{Name: "p", Type: &btf.Pointer{Target: num}}}}
	for _, typ := range []btf.Type{
		&btf.Struct{Name: "cgroup", Size: 16, Members: []btf.Member{
			{Name: "level", Type: &btf.Const{Type: num}},
			{Type: inner, Offset: 64},
		}},
		&btf.Enum{Name: "req_op", Size: 4, Values: []btf.EnumValue{{Name: "READ", Value: 1}}},
		&btf.Array{Index: num, Type: num, Nelems: 3},
	} {
		if _, err := b.Add(typ); err != nil {
			f.Fatal(err)
		}
	}
	raw, err := b.Marshal(nil, nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	f.Add(binary.LittleEndian.AppendUint16(nil, btfMagic))
	f.Fuzz(func(t *testing.T, raw []byte) {
		s, err := newSieve(raw)
		if err != nil {
			return
		}
		if s.index(map[string]bool{"cgroup": true, "req_op": true}) != nil {
			return
		}
		small, err := s.write()
		if err != nil {
			return
		}
		_, _ = btf.LoadSpecFromReader(bytes.NewReader(small))
	})
}

// BenchmarkOpen measures the startup delay of a metered command and of an agent.
func BenchmarkOpen(b *testing.B) {
	for name, cfg := range map[string]Config{
		"run": {Parts: Forks | Disk | Net, Groups: 64},
		"all": Default(),
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				k, err := Open(cfg)
				if err != nil {
					b.Skip(err)
				}
				if err := k.Close(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
