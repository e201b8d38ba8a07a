package attack_test

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/connection"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/pki/enroll"
	"mete.dev/mete/internal/pki/token"
	"mete.dev/mete/internal/testkit/attack"
)

func enrollFacts(name string) enroll.Facts {
	return enroll.Facts{Machine: "machine-of-" + name, Boot: "boot-of-" + name, Name: name}
}

// bomb returns a frame of zstd that expands to 512 MiB of zeros, and says so.
func bomb(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	enc, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	enc.ResetContentSize(&b, 512<<20)
	zeros := make([]byte, 1<<20)
	for range 512 {
		if _, err := enc.Write(zeros); err != nil {
			t.Fatal(err)
		}
	}
	if err := enc.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// valueTimes are the times of the values of an instant query.
var valueTimes = regexp.MustCompile(`\[[0-9.]+,`)

func batchNames(names ...batch.Name) []batch.Name { return names }

// nodeAttempts are those of an enrolled machine.
var nodeAttempts = []attempt{
	{"agent", "machine id and boot of another one", func(t *testing.T, s *scene) {
		for _, tok := range []string{s.agent, s.prodAgent} {
			n, err := s.Enroll(t, tok, s.victim.Facts)
			if err == nil && n.ID == s.victim.ID {
				t.Error("another key is the victim's node")
			}
		}
	}},
	{"agent", "batches of another node", func(t *testing.T, s *scene) {
		n, err := s.Enroll(t, s.prodAgent, enrollFacts("thief"))
		if err != nil {
			t.Fatal(err)
		}
		theirs := *n
		theirs.ID = s.victim.ID // rows of the victim's workloads
		if r := theirs.Send(t, batchNames(theirs.Name("payroll", "stolen", nil)), theirs.Window(n.Boottime-windowLength, n.Boottime, windowLength, theirs.Name("payroll", "stolen", nil))); r.Status == 500 {
			t.Errorf("%+v", r)
		}
		theirs.NewStream(77)
		theirs.Facts = s.victim.Facts
		theirs.Boottime, theirs.Offset = s.victim.Boottime, s.victim.Offset
		headers := []string{token.NodeHeader, s.victim.ID}
		if r := n.Post(t, []byte("x"), headers...); r.Status != 400 {
			t.Errorf("the victim's id in a header: %+v", r)
		}
		for _, path := range []string{"/v1/states/mark", "/v1/usage", "/v1/self", "/api/v1/query?query=up", "/v1/nodes"} {
			if a := attack.Do(t, n.Client, "GET", s.URL+path, nil); !is(a.Status, 401, 403) {
				t.Errorf("an agent asks %s: %d %.200s", path, a.Status, a.Body)
			}
		}
		if a := attack.Do(t, n.Client, "POST", s.URL+"/v1/states", strings.NewReader("x"), "Content-Type", wire.MediaTypeStates); a.Status != 403 {
			t.Errorf("an agent replicates: %d %s", a.Status, a.Body)
		}
	}},
	{"agent", "streams of another node", func(t *testing.T, s *scene) {
		n, err := s.Enroll(t, s.prodAgent, enrollFacts("stream-thief"))
		if err != nil {
			t.Fatal(err)
		}
		own := n.ID
		n.ID = s.victim.ID
		n.NewStream(s.victim.StreamByte())
		n.ID = own
		w := n.Window(n.Boottime-windowLength, n.Boottime, 0)
		if r := n.Send(t, nil, w); r.Verdict == "taken" {
			t.Errorf("a batch of the victim's stream: %+v", r)
		}
		lost := fmt.Sprintf(`{"stream":%q,"from":"2","to":"9000000000000000000","hash":"%s"}`, n.StreamText(), strings.Repeat("0", 64))
		if a := attack.Do(t, n.Client, "POST", s.URL+"/v1/lost", strings.NewReader(lost), "Content-Type", "application/json"); !is(a.Status, 400, 403) {
			t.Errorf("lost batches of the victim's stream: %d %s", a.Status, a.Body)
		}
	}},
	{"agent", "bodies that grow", func(t *testing.T, s *scene) {
		n, err := s.Enroll(t, s.agent, enrollFacts("bomber"))
		if err != nil {
			t.Fatal(err)
		}
		if r := n.Post(t, bomb(t)); r.Status != 400 {
			t.Errorf("512 MiB of zeros: %+v", r)
		}
		enc, err := zstd.NewWriter(nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, raw := range [][]byte{bytes.Repeat([]byte{0x1a, 0}, 4<<20), bytes.Repeat([]byte{0x22, 0}, 4<<20), []byte("x"), nil} {
			if r := n.Post(t, enc.EncodeAll(raw, nil)); r.Status/100 != 4 {
				t.Errorf("%d bytes: %+v", len(raw), r)
			}
		}
		// A frame that promises 1 TiB.
		if r := n.Post(t, []byte{0x28, 0xb5, 0x2f, 0xfd, 0xe0, 0, 0, 0, 0, 0, 1, 0, 0, 1, 0, 0}); r.Status != 400 {
			t.Errorf("a frame of 1 TiB: %+v", r)
		}
		for _, headers := range [][]string{{wire.HeaderBoottime, "-1"}, {wire.HeaderBoottime, "9223372036854775807"}, {wire.HeaderWall, "-9223372036854775808"}, {wire.HeaderBoot, strings.Repeat("b", 1000)}} {
			if r := n.Post(t, enc.EncodeAll(nil, nil), headers...); r.Status != 400 {
				t.Errorf("%v: %+v", headers, r)
			}
		}
	}},
	{"agent", "names that fill the disk", func(t *testing.T, s *scene) {
		n, err := s.Enroll(t, s.agent, enrollFacts("namer"))
		if err != nil {
			t.Fatal(err)
		}
		for i := range 5 {
			var names []batch.Name
			labels := map[string]string{}
			for k := range 32 {
				labels[fmt.Sprintf("l%d", k)] = strings.Repeat("x", 4000)
			}
			for k := range 55 {
				names = append(names, n.Name(fmt.Sprint(i, " ", k), "big", labels))
			}
			from := n.Boottime - int64(20-i)*windowLength
			if r := n.Send(t, names, n.Window(from, from+windowLength, 1000, names...)); r.Status == 500 {
				t.Errorf("%+v", r)
			}
		}
	}},
	{"agent", "impossible amounts and times", func(t *testing.T, s *scene) {
		n, err := s.Enroll(t, s.agent, enrollFacts("liar"))
		if err != nil {
			t.Fatal(err)
		}
		name := n.Name("w", "w", nil)
		for i, w := range []usage.Window{
			n.Window(0, math.MaxInt64-1, 1, name), n.Window(n.Boottime, n.Boottime+int64(1000*24*time.Hour), 1, name), n.Window(n.Boottime-windowLength, n.Boottime, math.MaxInt64/2, name),
		} {
			n.NewStream(byte(100 + i))
			if r := n.Send(t, batchNames(name), w); r.Status != 400 {
				t.Errorf("window %d: %+v", i, r)
			}
		}
		if a := s.Do(t, http.MethodGet, "/v1/usage?by=cluster", nil, attack.Bearer(s.admin)...); a.Status != 200 {
			t.Errorf("sums: %d %.300s", a.Status, a.Body)
		}
	}},
	{"agent", "texts that control a terminal", func(t *testing.T, s *scene) {
		const evil = "a\x1b]0;pwned\a\x1b[2J\u009b31m\u202eevil\r\nx\x7f"
		f := enrollFacts("evil")
		f.Name = evil
		if _, err := s.Enroll(t, s.agent, f); err == nil {
			t.Error("a machine with such a name enrolls")
		}
		n, err := s.Enroll(t, s.agent, enrollFacts("evil"))
		if err != nil {
			t.Fatal(err)
		}
		name := n.Name("k", evil, map[string]string{"app": evil, "io.kubernetes.pod.name": evil})
		name.Path, name.Job, name.User, name.Project = "/"+evil, evil, evil, evil
		w := n.Window(n.Boottime-windowLength, n.Boottime, 1000, name)
		w.Gaps = []usage.Gap{{From: time.Now().Add(-time.Minute), To: time.Now(), Reason: usage.Unwatched, Detail: evil}}
		if r := n.Send(t, batchNames(name), w); r.Verdict != "taken" {
			t.Errorf("%+v", r)
		}
		if a := s.Write(t, s.writer, time.Second, attack.Sample{Labels: []string{"__name__", "app_evil", "l", evil}, Values: []float64{1, 2}}); a.Status/100 != 2 {
			t.Errorf("%d %s", a.Status, a.Body)
		}
		for _, args := range [][]string{{"usage"}, {"usage", "--by", "workload,user,project,label:app"}, {"nodes"}, {"gaps"}, {"workloads"}, {"query", "app_evil"}, {"query", "mete_workload_info"}} {
			for _, form := range []string{"table", "csv", "json"} {
				cmd := exec.CommandContext(t.Context(), filepath.Join(programs.Dir(t), "mete"), append(args, "-o", form, "--server", s.URL)...)
				cmd.Env = append(os.Environ(), "METE_TOKEN="+s.admin, "METE_STATE="+t.TempDir())
				out, err := cmd.CombinedOutput()
				if i := bytes.IndexAny(out, "\x1b\a\u009b\u202e\r\x7f"); i >= 0 || err != nil {
					t.Errorf("mete %s -o %s: %v, %.200q", args, form, err, out[max(0, i-50):])
				}
			}
		}
		if log := s.Log.String() + s.Out.String(); strings.ContainsAny(log, "\x1b\a\u009b\u202e\r\x7f") {
			t.Errorf("the log: %q", log)
		}
	}},
	{"agent", "windows of years", func(t *testing.T, s *scene) {
		n, err := s.Enroll(t, s.agent, enrollFacts("old"))
		if err != nil {
			t.Fatal(err)
		}
		s.awaitFloor(t)
		const day = int64(24 * time.Hour)
		n.Boottime, n.Offset = 20*365*day, time.Now().UnixNano()-20*365*day
		name := n.Name("w", "w", nil)
		var ws []usage.Window
		for i := range int64(1000) {
			ws = append(ws, n.Window(4*i*day, 4*i*day+windowLength, 1000, name))
		}
		ws = append(ws, n.Window(4001*day, n.Boottime, 1000, name)) // one of nine years
		if r := n.Send(t, batchNames(name), ws...); r.Verdict != "taken" {
			t.Errorf("%+v", r)
		}
		if days := s.minuteDays(t); days > 10 {
			t.Errorf("tables of minutes for %d days", days)
		}
	}},
	{"agent", "the name of another machine", func(t *testing.T, s *scene) {
		count := func(name string) string {
			query := fmt.Sprintf(`sum by (__name__) (last_over_time({__name__=~"mete_node_.*cpu.*",cluster="prod",node=%q}[1h]))`, name)
			_, result, _ := strings.Cut(s.Do(t, "GET", "/api/v1/query?time="+unix(time.Now().Add(time.Minute))+"&query="+url.QueryEscape(query), nil, attack.Bearer(s.admin)...).Body, `"result"`)
			return valueTimes.ReplaceAllString(result, "")
		}
		before := count(s.victim.Facts.Name)
		f := enrollFacts("twin")
		f.Name = s.victim.Facts.Name
		n, err := s.Enroll(t, s.prodAgent, f)
		if err != nil {
			t.Fatal(err)
		}
		if r := n.Send(t, nil, n.Window(n.Boottime-windowLength, n.Boottime, 0)); r.Verdict != "taken" {
			t.Fatalf("%+v", r)
		}
		if after := count(s.victim.Facts.Name); after != before || !strings.Contains(after, `"value"`) {
			t.Errorf("series of payroll-host: %s, were %s", after, before)
		}
		if twins := count("payroll-host~" + n.ID[len(n.ID)-6:]); !strings.Contains(twins, `"value"`) {
			t.Errorf("series of its twin: %s", twins)
		}
	}},
	{"agent", "volumes of pods of another node", func(t *testing.T, s *scene) {
		s.changeLedger(t, `INSERT INTO pod (cluster, uid, namespace, name, job, node, labels, created_ns, claims) VALUES ('prod', 'pod-of-payroll', 'finance', 'payroll-0', '', 'payroll-host', '{}', 1, 'data')`)
		s.changeLedger(t, `INSERT INTO pod (cluster, uid, namespace, name, job, node, labels, created_ns, volume, claims) VALUES ('prod', 'volume-of-payroll', 'finance', 'pv-payroll', '', '', '{}', 1, 1, 'finance/data')`)
		figure := usage.VolumeUse{Pod: "pod-of-payroll", Volume: "pv-payroll", Used: 1 << 40}
		for i, thief := range []struct{ token, name string }{{s.agent, ""}, {s.prodAgent, ""}, {s.prodAgent, s.victim.Facts.Name}} {
			f := enrollFacts(fmt.Sprint("volume-thief-", i))
			f.Name = cmp.Or(thief.name, f.Name)
			n, err := s.Enroll(t, thief.token, f)
			if err != nil {
				t.Fatal(err)
			}
			at := n.Boottime - 10*windowLength
			send := func(volumes ...usage.VolumeUse) attack.Reply {
				w := n.Window(at, at+windowLength, 0)
				w.Volumes = volumes
				at += windowLength
				return n.Send(t, batchNames(n.Name("w", "w", map[string]string{"io.kubernetes.pod.uid": "pod-of-payroll"})), w)
			}
			many := slices.Repeat([]usage.VolumeUse{figure}, wire.Default().Volumes)
			for i := range many {
				many[i].Volume = fmt.Sprint("pv-", i)
			}
			many[len(many)-1] = figure
			for _, volumes := range [][]usage.VolumeUse{{figure}, many} {
				if r := send(volumes...); r.Verdict != "taken" {
					t.Errorf("%d figures: %+v", len(volumes), r)
				}
			}
			if r := send(slices.Repeat([]usage.VolumeUse{{Volume: strings.Repeat("x", 4096)}}, 5000)...); r.Status != 400 && r.Status != 413 {
				t.Errorf("20 MB of names: %+v", r)
			}
		}
		if n := s.ledger(t, "SELECT count(*) FROM volume_use"); n > 0 {
			t.Errorf("%d figures of the victim's volume", n)
		}
		w := s.victim.Window(s.at, s.at+windowLength, windowLength, s.payroll)
		w.Volumes = []usage.VolumeUse{figure}
		if r := s.victim.Send(t, nil, w); r.Verdict != "taken" {
			t.Errorf("%+v", r)
		}
		s.at += windowLength
		s.before = s.figures(t) // with what the victim sent
		if n := s.ledger(t, "SELECT count(*) FROM volume_use WHERE bytes = 1 << 40"); n != 1 {
			t.Errorf("%d figures of the victim", n)
		}
	}},
	{"agent", "connections that no machine has, and of another node", func(t *testing.T, s *scene) {
		n, err := s.Enroll(t, s.prodAgent, enrollFacts("talker"))
		if err != nil {
			t.Fatal(err)
		}
		at := n.Boottime - 20*windowLength
		own := n.Name("own", "own", nil)
		send := func(of batch.Name, received int64, sketch *connection.Sketch) attack.Reply {
			w := n.Window(at, at+windowLength, 0, of)
			w.Rows[0].Usage.Put(usage.NetworkRx, received, usage.Measured)
			w.Rows[0].Connections = sketch
			at += windowLength
			return n.Send(t, batchNames(own), w)
		}
		edges := func(n int, bytes int64) *connection.Sketch {
			s := &connection.Sketch{}
			for i := range n {
				s.Add(connection.Edge{Peer: netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})}, connection.Traffic{RxBytes: bytes})
			}
			return s
		}
		const rows = "SELECT %s FROM connections c JOIN workload w ON w.id = c.workload JOIN node n ON n.id = w.node WHERE n.node_id = '%s'"
		victims := s.ledger(t, fmt.Sprintf(rows, "sum(length(c.sketch))", s.victim.ID))
		negative := edges(2, 1)
		negative.Entries[0].RxBytes = -1
		unsure := edges(1, 1)
		unsure.Entries[0].Error, unsure.Missed = 101, 101
		unsorted := edges(2, 1)
		slices.Reverse(unsorted.Entries)
		for what, sketch := range map[string]*connection.Sketch{"21 edges": edges(connection.Top+1, 1), "more than the traffic": edges(2, 51), "negative": negative,
			"an error beyond the traffic": unsure, "unsorted": unsorted, "a sum that does not fit": edges(2, math.MaxInt64)} {
			if r := send(own, 100, sketch); r.Status != 400 {
				t.Errorf("%s: %+v", what, r)
			}
		}
		if n := s.ledger(t, fmt.Sprintf(rows, "count(*)", n.ID)); n > 0 {
			t.Errorf("%d rows of connections", n)
		}
		// New peers in each window, and the workload of another node by its number.
		for i := range 3 {
			sketch := edges(connection.Top, 1)
			for k := range sketch.Entries {
				sketch.Entries[k].Peer = netip.AddrFrom4([4]byte{10, byte(i + 1), 0, byte(k)})
			}
			if r := send(own, 100, sketch); r.Verdict != "taken" {
				t.Errorf("%+v", r)
			}
		}
		if r := send(s.payroll, 100, edges(1, 1)); r.Verdict != "taken" {
			t.Errorf("%+v", r)
		}
		if n := s.ledger(t, fmt.Sprintf(rows, "sum(length(c.sketch))", s.victim.ID)); n != victims {
			t.Errorf("the victim's connections have %d bytes, %d before", n, victims)
		}
		// The windows may contain the edge of an hour.
		if n := s.ledger(t, fmt.Sprintf(rows, "count(*)", n.ID)); n < 2 || n > 4 {
			t.Errorf("%d rows of connections, want one for each hour and workload", n)
		}
		if n := s.ledger(t, "SELECT coalesce(max(length(sketch)), 0) FROM connections"); n == 0 || n > 20*72 {
			t.Errorf("a sketch of %d bytes", n)
		}
	}},
	{"agent", "a guest in another cluster", func(t *testing.T, s *scene) {
		share := power.Share{Epoch: "epochx", N: 5, Active: 300, Idle: 0}
		const uuid = "00112233-4455-6677-8899-aabbccddeeff"
		host, err := s.Enroll(t, s.agent, enrollFacts("host"))
		if err != nil {
			t.Fatal(err)
		}
		guest := batch.Name{ID: workload.NewID(host.ID, workload.VM, uuid), Kind: workload.VM, Key: uuid, Name: "guest"}
		w := host.Window(host.Boottime-windowLength, host.Boottime, 1000, guest)
		for i := range w.Rows {
			if w.Rows[i].Workload.Kind == workload.VM {
				w.Rows[i].Usage.Put(usage.EnergyPackage, 300, usage.Apportioned)
			}
		}
		w.Balance.Whole[6], w.Balance.Workloads[6] = 300, 300
		w.Handovers = []usage.Handover{{Guest: uuid, Workload: guest.ID, Shares: []power.Share{share}, Booked: 300}}
		if r := host.Send(t, batchNames(guest), w); r.Verdict != "taken" {
			t.Errorf("%+v", r)
		}
		w = s.victim.Window(s.at, s.at+windowLength, windowLength, s.payroll)
		w.Handovers = []usage.Handover{{Guest: uuid, Shares: []power.Share{share}, Booked: 300}}
		if r := s.victim.Send(t, nil, w); r.Verdict != "taken" {
			t.Errorf("%+v", r)
		}
		s.at += windowLength
		s.before = s.figures(t) // with what the victim sent
		for line := range strings.Lines(s.before) {
			if !strings.Contains(line, "nested=false") { // a nested group is in no sum
				t.Errorf("a host of lab hides %s", line)
			}
		}
	}},
}
