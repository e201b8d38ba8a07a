package main

import (
	"os"
	"path/filepath"
	"testing"
)

// TestZones checks that an open file of a tree shows each new number, of which all have one width, and
// begins again after the highest.
func TestZones(t *testing.T) {
	z, err := createZones(t.TempDir(), 1)
	if err != nil {
		t.Fatal(err)
	}
	close(z.stop) // the numbers below are then the only ones
	if err := <-z.err; err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := z.closeFiles(); err != nil {
			t.Error(err)
		}
	}()
	for _, id := range []string{"intel-rapl:0", "intel-rapl:0:0"} {
		file, err := os.Open(filepath.Join(z.dir, id, "energy_uj"))
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			uJ   int64
			want string
		}{{99, "000000000099\n"}, {maxZone, "262143328850\n"}, {maxZone + 100, "000000000099\n"}} {
			if err := z.write(c.uJ); err != nil {
				t.Fatal(err)
			}
			b := make([]byte, 64)
			n, _ := file.ReadAt(b, 0) // it always meets the end
			if string(b[:n]) != c.want {
				t.Errorf("%s: %q after %d uJ, want %q", id, b[:n], c.uJ, c.want)
			}
		}
		if err := file.Close(); err != nil {
			t.Error(err)
		}
	}
}
