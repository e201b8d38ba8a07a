package proc

import "testing"

func FuzzGroup(f *testing.F) {
	f.Add([]byte("3:cpu,cpuacct:/a\n1:name=systemd:/b\n0::/c (deleted)\n"), uint32(0))
	f.Add([]byte("3:cpu,cpuacct:/a:b\n"), uint32(3))
	f.Add([]byte("::\n:::\n0:/\n"), uint32(0))
	f.Fuzz(func(t *testing.T, b []byte, hierarchy uint32) {
		if p, ok := parseGroup(b, hierarchy); ok && (len(p) > 0 && p[0] != '/' || len(p) > len(b)) {
			t.Errorf("parseGroup(%q) = %q", b, p)
		}
	})
}

func TestGroup(t *testing.T) {
	const text = "13:cpu:/x\n3:cpu,cpuacct:/a:b\n1:name=systemd:/b\n0::/c (deleted)\n"
	for _, c := range []struct {
		hierarchy uint32
		want      string
		ok        bool
	}{{3, "/a:b", true}, {0, "/c", true}, {1, "/b", true}, {13, "/x", true}, {2, "", false}} {
		if got, ok := parseGroup([]byte(text), c.hierarchy); string(got) != c.want || ok != c.ok {
			t.Errorf("parseGroup(%d) = %q, %v, want %q, %v", c.hierarchy, got, ok, c.want, c.ok)
		}
	}
}

func TestNumber(t *testing.T) {
	for text, want := range map[string]int32{"1": 1, "4194304": 1 << 22, "4194305": 0, "0": 0, "": 0, "self": 0, "1a": 0, "99999999999999999999": 0} {
		if got, ok := parsePID([]byte(text)); ok != (want != 0) || ok && got != want {
			t.Errorf("number(%q) = %d, %v, want %d", text, got, ok, want)
		}
	}
}
