package vm_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"mete.dev/mete/internal/collect/proc"
	"mete.dev/mete/internal/collect/vm"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/testkit"
)

// A virtual machine in a group of its own, without hints, is found at the next scan, with
// its name, UUID, CPUs and the use of its threads, and is dropped when it ends.
func TestVirtualMachine(t *testing.T) {
	for _, reader := range []string{"bpf", "files"} {
		for accel := range accelerators {
			t.Run(reader+"/"+accel, func(t *testing.T) {
				s := openFixture(t, reader, 1)
				p := top(t, "one")
				g := boot(t, s.mkdir(p), accel, "-name", "guest=one,debug-threads=on", "-uuid", strings.ToUpper(uuid), "-smp", "2,maxcpus=4",
					"-object", "iothread,id=disks")
				s.until("a guest", func() bool {
					o := s.group(p)
					return o != nil && o.Guest != nil && o.Guest.VCPUs == 2 && s.find("one").Named
				})
				if got, want := *s.group(p).Guest, (usage.Guest{UUID: uuid, Name: "one", VCPUs: 2}); got != want {
					t.Errorf("guest %+v, want %+v", got, want)
				}
				v := s.find("one")
				if v == nil || v.RejectReason != "" || !v.Named || v.MaxVCPUs != 4 || v.Workload.Path != p || int(v.PID) != g.cmd.Process.Pid {
					t.Fatalf("%+v", v)
				}
				s.checkTimes(v)
				g.kill(t)
				s.tick()
				if o := s.group(p); o == nil || o.Guest != nil || s.find("one") != nil {
					t.Errorf("after its end: %+v, %+v", o, s.find("one"))
				}
				if !strings.Contains(s.log.String(), "uuid="+uuid) {
					t.Errorf("log:\n%s", s.log)
				}
			})
		}
	}
}

// checkTimes compares what v used with the kernel's figures of its process, until nearly
// all of it was used by the threads that run the guest, one of whose CPUs is always busy.
func (s *fixture) checkTimes(v *vm.VM) {
	s.t.Helper()
	before, err := s.vms.Times(v)
	if err != nil {
		s.t.Fatal(err)
	}
	testkit.Eventually(s.t, "its CPUs use most of the time, and its I/O thread some", func() bool {
		r, disks := s.rates(v, before)
		return r.Role[vm.VCPU] > 0 && r.Role[vm.VCPU] >= 0.8*r.CPU && disks > 0
	})
}

// rates returns the rates since before; disks is what the I/O thread used so far.
func (s *fixture) rates(v *vm.VM, before vm.Times) (r vm.Rates, disks int64) {
	s.t.Helper()
	low, err := proc.CPUTime(v.PID)
	if err != nil {
		s.t.Fatal(err)
	}
	after, err := s.vms.Times(v)
	if err != nil {
		s.t.Fatal(err)
	}
	high, err := proc.CPUTime(v.PID)
	if err != nil {
		s.t.Fatal(err)
	}
	if after.CPU < low || after.CPU > high {
		s.t.Errorf("CPU time %d, not in %d..%d", after.CPU, low, high)
	}
	sum := int64(0)
	for _, ns := range after.Role {
		sum += ns
	}
	if sum != after.CPU {
		s.t.Errorf("roles %v sum to %d of %d", after.Role, sum, after.CPU)
	}
	r, ok := after.Since(before)
	if !ok || !r.Named || !r.HasWait {
		s.t.Fatalf("%+v %v", r, ok)
	}
	return r, after.Role[vm.IOThread]
}

// A group named like one of a virtual machine is scanned at once.
func TestNewGroupScan(t *testing.T) {
	for _, reader := range []string{"bpf", "files"} {
		t.Run(reader, func(t *testing.T) {
			s := openFixture(t, reader, 1_000_000)
			over := top(t, "scope")
			s.mkdir(over)
			p := over + `/machine-qemu\x2d1\x2dsoon.scope`
			s.mkdir(p)
			boot(t, s.mkdir(p+"/libvirt"), "tcg", "-name", "soon,debug-threads=on", "-S") // its threads are below the scope
			s.until("a guest", func() bool { o := s.group(p); return o != nil && o.Guest != nil })
			if g := s.group(p); g.Guest.Name != "soon" || g.Guest.UUID != "" || g.Workload.Name != "soon" {
				t.Errorf("%+v in %+v", g.Guest, g.Workload)
			}
		})
	}
}

// A group with other processes beside a virtual machine has no guest, and a reason.
func TestRejected(t *testing.T) {
	s := openFixture(t, "files", 1)
	p := top(t, "shared")
	dir := s.mkdir(p)
	boot(t, dir, "tcg", "-name", "a,debug-threads=on", "-S")
	s.until("a guest", func() bool { o := s.group(p); return o != nil && o.Guest != nil })

	other := exec.Command("sleep", "infinity")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = other.Process.Kill() // it may have exited already
		_ = other.Wait()
	})
	enter(t, dir, other.Process.Pid)
	s.tick()
	why := fmt.Sprintf("it shares its group with sleep (PID %d); give it its own", other.Process.Pid)
	if g, v := s.group(p), s.find("a"); g.Guest != nil || v == nil || v.RejectReason != why {
		t.Errorf("%+v, %+v, want %q", g.Guest, v, why)
	}
	if err := other.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = other.Wait() // killed above
	s.until("a guest again", func() bool { return s.group(p).Guest != nil })

	second := boot(t, dir, "tcg", "-name", "b,debug-threads=on", "-S")
	s.until("both are rejected", func() bool {
		refused := func(name string) bool {
			v := s.find(name)
			return v != nil && strings.HasPrefix(v.RejectReason, "2 virtual machines are in one group: ")
		}
		return s.group(p).Guest == nil && refused("a") && refused("b")
	})
	for range 5 {
		s.tick()
	}
	for _, name := range []string{"a", "b"} {
		if n := strings.Count(s.log.String(), "booked like any workload\" vm="+name); n != 1 {
			t.Errorf("%s: logged %d times, want once:\n%s", name, n, s.log)
		}
	}
	second.kill(t)
	s.until("a guest again", func() bool { g := s.group(p).Guest; return g != nil && g.Name == "a" })

	third := boot(t, "", "tcg", "-name", "c", "-S") // the group of this process
	s.until("its reject reason", func() bool { v := s.find("c"); return v != nil && v.RejectReason != "" })
	if v := s.find("c"); v.Named || v.VCPUs != 1 {
		t.Errorf("%+v, want one without thread names", v)
	}
	var times vm.Times
	s.until("its CPU time", func() (ok bool) { // the kernel counts some of it only at clock ticks
		v := s.find("c")
		if v == nil {
			return false
		}
		var err error
		if times, err = s.vms.Times(v); err != nil {
			t.Fatal(err)
		}
		return times.CPU > 0
	})
	if times.Named || times.HasWait {
		t.Errorf("times %+v, want no roles", times)
	}
	third.kill(t)
}

// KVM counts exits; without KVM there are none.
func TestQueryExits(t *testing.T) {
	s := openFixture(t, "files", 1)
	tmp := t.TempDir()
	for accel := range accelerators {
		t.Run(accel, func(t *testing.T) {
			socket := filepath.Join(tmp, accel)
			boot(t, "", accel, "-name", accel+",debug-threads=on", "-smp", "2", "-qmp", "unix:"+socket+",server=on,wait=off")
			s.until("two CPUs", func() bool { v := s.find(accel); return v != nil && v.Named && v.VCPUs == 2 })
			v := s.find(accel)
			first, err := queryExits(t, s, v)
			if accel == "tcg" {
				if first != nil || !errors.Is(err, fault.ErrUnsupported) || !strings.Contains(err.Error(), "without KVM") {
					t.Errorf("%v, %v, want no counters", first, err)
				}
				return
			}
			more := func(than int64) (e vm.Exits) {
				testkit.Eventually(t, fmt.Sprintf("more than %d exits", than), func() bool {
					var err error
					if e, err = queryExits(t, s, v); err != nil {
						t.Fatal(err)
					}
					return e["exits"] > than
				})
				return e
			}
			first = more(0) // a CPU that has not entered the guest yet has no exits
			then := more(first["exits"])
			t.Logf("%v, then %v", first, then)
		})
	}
}

// queryExits retries until QEMU answers in time: on a busy machine it may take longer.
func queryExits(t *testing.T, s *fixture, v *vm.VM) (e vm.Exits, err error) {
	t.Helper()
	testkit.Eventually(t, "QEMU answers", func() bool {
		e, err = vm.QueryExits(t.Context(), s.h, v)
		return !errors.Is(err, fault.ErrUnavailable)
	})
	return e, err
}

// A monitor in use by another client, or of another process, is not used.
func TestQueryExitsRefused(t *testing.T) {
	s := openFixture(t, "files", 1)
	tmp := t.TempDir()
	long := filepath.Join(tmp, strings.Repeat("d", 60))
	if err := os.Mkdir(long, 0o755); err != nil {
		t.Fatal(err)
	}
	boot(t, "", "tcg", "-name", "m", "-S", "-chardev", "socket,id=mon,path="+tmp+"/m,server=on,wait=off", "-mon", "chardev=mon,mode=control")
	s.until("the virtual machine", func() bool { return s.find("m") != nil })
	v := *s.find("m")
	var held net.Conn
	testkit.Eventually(t, "its monitor listens", func() (ok bool) {
		var err error
		held, err = net.Dial("unix", tmp+"/m")
		return err == nil
	})
	if _, err := held.Read(make([]byte, 1)); err != nil { // the connection is ours
		t.Fatal(err)
	}
	if e, err := vm.QueryExits(t.Context(), s.h, &v); e != nil || !errors.Is(err, fault.ErrUnavailable) || fault.Hint(err) == "" {
		t.Errorf("monitor in use: %v, %v", e, err)
	}
	if err := held.Close(); err != nil {
		t.Fatal(err)
	}

	l, err := net.Listen("unix", filepath.Join(tmp, "ours"))
	if err != nil {
		t.Fatal(err)
	}
	closing(t, l)
	v.Monitor.Path = filepath.Join(tmp, "ours")
	if e, err := queryExits(t, s, &v); e != nil || !errors.Is(err, fault.ErrConflict) {
		t.Errorf("socket of another process: %v, %v", e, err)
	}
	late, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	if e, err := vm.QueryExits(late, s.h, &v); e != nil || !errors.Is(err, fault.ErrUnavailable) || fault.Hint(err) == "" {
		t.Errorf("no time left to connect: %v, %v", e, err)
	}
	v.Monitor.Path = filepath.Join(tmp, "nosuch")
	if e, err := vm.QueryExits(t.Context(), s.h, &v); e != nil || !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("missing socket: %v, %v", e, err)
	}
	v.Monitor = vm.Monitor{Why: "w", Hint: "h"}
	if e, err := vm.QueryExits(t.Context(), s.h, &v); e != nil || !errors.Is(err, fault.ErrUnsupported) || fault.Hint(err) != "h" {
		t.Errorf("no monitor: %v, %v", e, err)
	}
}
