package energyshare_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"mete.dev/mete/internal/guest/energyshare"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/power"
)

const uuid = "6f1c3f0e-7a52-4c1b-9d2e-0a1b2c3d4e5f"

func message() energyshare.Message {
	return energyshare.Message{Name: "web 1", VCPUs: 4, Share: power.Share{Guest: uuid, Epoch: "MZXW6YTBOI5GK3DPNZSW4ZDFNA",
		N: 9_007_199_254_740_991, At: 1<<63 - 1, Active: 1 << 61, Idle: 1 << 61, Error: 1 << 62, Modelled: 7}}
}

// TestText compares the complete text, which is an interface.
func TestText(t *testing.T) {
	m := message()
	got := string(energyshare.Append(nil, &m))
	want := `{"version":1,"uuid":"6f1c3f0e-7a52-4c1b-9d2e-0a1b2c3d4e5f","name":"web 1","vcpus":4,"epoch":"MZXW6YTBOI5GK3DPNZSW4ZDFNA","n":9007199254740991,"at_ns":"9223372036854775807","active_uj":"2305843009213693952","idle_uj":"2305843009213693952","error_uj":"4611686018427387904","modelled_uj":"7"}` + "\n"
	if got != want {
		t.Errorf("got  %swant %s", got, want)
	}
	back, err := energyshare.Decode([]byte(got))
	if diff := cmp.Diff(m, back); err != nil || diff != "" {
		t.Errorf("read back: %v\n%s", err, diff)
	}
	got = string(energyshare.AppendAck(nil, energyshare.Ack{Epoch: "E", N: 5, Energy: 1 << 62}))
	if want := `{"epoch":"E","n":5,"energy_uj":"4611686018427387904"}` + "\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if a, err := energyshare.DecodeAck([]byte(got)); err != nil || a != (energyshare.Ack{Epoch: "E", N: 5, Energy: 1 << 62}) {
		t.Errorf("%+v, %v", a, err)
	}
}

// TestName checks that a name can break neither the line nor a terminal.
func TestName(t *testing.T) {
	m := message()
	m.Name = "a\nb\x1b[1mc\xff" + strings.Repeat("é", 200)
	b := energyshare.Append(nil, &m)
	got, err := energyshare.Decode(b)
	if err != nil || strings.Count(string(b), "\n") != 1 || len(got.Name) > 255 || !strings.HasPrefix(got.Name, "a?b?[1mc?éé") || !strings.HasSuffix(got.Name, "é") {
		t.Errorf("%q, %v", got.Name, err)
	}
}

func TestRefused(t *testing.T) {
	m := message()
	good := string(energyshare.Append(nil, &m))
	for _, c := range []struct {
		name, from, to string
		want           error
	}{
		{"no JSON", good, "hello", fault.ErrInvalid},
		{"nothing", good, "", fault.ErrInvalid},
		{"cut", good, good[:len(good)/2], fault.ErrInvalid},
		{"two", good, good + good, fault.ErrInvalid},
		{"null", good, "null", fault.ErrInvalid},
		{"an empty object", good, "{}", fault.ErrInvalid},
		{"too long", "web 1", strings.Repeat("x", 5000), fault.ErrInvalid},
		{"later version", `"version":1`, `"version":2`, fault.ErrUnsupported},
		{"another machine's way to write it", uuid, strings.ToUpper(uuid), fault.ErrInvalid},
		{"no epoch", "MZXW6YTBOI5GK3DPNZSW4ZDFNA", "", fault.ErrInvalid},
		{"an epoch with a break", "MZXW6YTBOI5GK3DPNZSW4ZDFNA", `A\nB`, fault.ErrInvalid},
		{"negative number", `"n":9007199254740991`, `"n":-1`, fault.ErrInvalid},
		{"number beyond", `"n":9007199254740991`, `"n":9007199254740992`, fault.ErrInvalid},
		{"a number for a text", `"active_uj":"2305843009213693952"`, `"active_uj":5`, fault.ErrInvalid},
		{"negative energy", `"2305843009213693952","idle`, `"-1","idle`, fault.ErrInvalid},
		{"too much energy", `"2305843009213693952","idle`, `"2305843009213693953","idle`, fault.ErrInvalid},
		{"energy beyond 64 bits", `"2305843009213693952","idle`, `"92233720368547758070","idle`, fault.ErrInvalid},
		{"negative error", `"4611686018427387904"`, `"-4"`, fault.ErrInvalid},
		{"more modelled than there is", `"modelled_uj":"7"`, `"modelled_uj":"4611686018427387905"`, fault.ErrInvalid},
		{"refusal", good, string(energyshare.AppendRefusal(nil, "no virtual machine has the CID 9")), fault.ErrUnavailable},
	} {
		text := strings.Replace(good, c.from, c.to, 1)
		if text == good {
			t.Fatalf("%s: nothing was changed", c.name)
		}
		if m, err := energyshare.Decode([]byte(text)); !errors.Is(err, c.want) {
			t.Errorf("%s: %+v, %v, want %v", c.name, m, err, c.want)
		}
	}
	for _, text := range []string{"", "{}", "null", `{"epoch":"E","n":-1,"energy_uj":"0"}`, `{"epoch":"E","n":0,"energy_uj":"-1"}`,
		`{"epoch":"","n":0,"energy_uj":"0"}`, `{"epoch":"E","n":0,"energy_uj":0}`, strings.Repeat(" ", 5000)} {
		if a, err := energyshare.DecodeAck([]byte(text)); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%q: %+v, %v", text, a, err)
		}
	}
	// Additions within a version must not be refused.
	if _, err := energyshare.Decode([]byte(strings.Replace(good, "{", `{"more":[1],`, 1))); err != nil {
		t.Error(err)
	}
}

func FuzzDecode(f *testing.F) {
	m := message()
	f.Add(energyshare.Append(nil, &m))
	f.Add(energyshare.AppendRefusal(nil, "no"))
	f.Add([]byte(`{"version":1,"uuid":"","name":"","vcpus":0,"epoch":"x","n":0,"at_ns":"0","active_uj":"0","idle_uj":"0","error_uj":"0","modelled_uj":"0"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := energyshare.Decode(b)
		if err != nil {
			return
		}
		if e := m.Energy(); e < 0 || e > energyshare.MaxEnergy || m.Modelled > e {
			t.Fatalf("%+v", m)
		}
		text := energyshare.Append(nil, &m)
		again, err := energyshare.Decode(text)
		if diff := cmp.Diff(m, again); err != nil || diff != "" {
			t.Fatalf("%v\n%s", err, diff)
		}
	})
}

func FuzzDecodeAck(f *testing.F) {
	f.Add(energyshare.AppendAck(nil, energyshare.Ack{Epoch: "E", N: 5, Energy: 1 << 62}))
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := energyshare.DecodeAck(b)
		if err != nil {
			return
		}
		if again, err := energyshare.DecodeAck(energyshare.AppendAck(nil, a)); err != nil || again != a {
			t.Fatalf("%+v, %v", again, err)
		}
	})
}
