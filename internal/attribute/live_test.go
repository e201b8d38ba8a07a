package attribute_test

import (
	"encoding/json"
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"mete.dev/mete/internal/attribute"
	"mete.dev/mete/internal/attribute/energy"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// TestLiveGolden compares the JSON of a machine's latest tick with a golden file, byte by byte.
func TestLiveGolden(t *testing.T) {
	s := crowd(30)
	guests(s, 2)
	s.Groups[7].Has &^= usage.SetOf(usage.DiskRead, usage.Memory, usage.PressureIO)
	s.Groups[9].Put(usage.NetworkRx, 0)
	s.Groups[9].Put(usage.NetworkTx, 0)
	s.Node.Total.Put(usage.NetworkRx, 0)
	s.Node.Total.Put(usage.NetworkTx, 0)
	accounts := attribute.New("n")
	accounts.SetMeters(energy.New(packages))
	s.Before = []power.Reading{{}}
	for range 4 {
		s.At += 1_012_345_678
		s.Mono = s.At
		busy(s)
		s.Groups[9].Value[usage.NetworkRx] += 123_457
		s.Groups[9].Value[usage.Memory] += 1 << 30
		s.Node.Total.Value[usage.NetworkRx] += 200_001
		metered(s)
		accounts.Tick(s)
	}
	m := accounts.Live()
	got, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.ReplaceAll(string(got), `{"id"`, "\n{\"id\"") + "\n"
	const path = "testdata/live.json"
	if *update {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), text); d != "" {
		t.Errorf("the tick is not told as before (-want +got):\n%s", d)
	}
}
