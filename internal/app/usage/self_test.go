package usage_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// TestSelf checks that mete usage --self shows the server's answer about the job.
func TestSelf(t *testing.T) {
	self := &query.Self{Node: "n", NodeName: "web-1", Name: batch.Name{ID: workload.NewID("n", workload.Job, "k"), Kind: workload.Job, Name: "make"},
		First: noon.Add(-2 * time.Minute), Last: noon, Through: noon.Add(-time.Second)}
	var shown string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		shown = r.URL.Path + " " + r.Header.Get("Authorization")
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(v1.JSON(v1.SelfOf(self))) // the test checks the output
	}))
	defer s.Close()
	t.Setenv("METE_SELF_URL", s.URL+"/prefix/v1/self")
	t.Setenv("METE_SELF_TOKEN", "secret")
	t.Setenv("METE_SELF_CA", "")
	if out, err := run("usage", "--self"); err != nil || !strings.Contains(out, "nothing is booked") || shown != "/prefix/v1/self Bearer secret" {
		t.Errorf("%v, shown %q:\n%s", err, shown, out)
	}
	self.Usage.Present, self.Usage.Covered = usage.SetOf(usage.CPU), unit.Sum{}.Add(int64(2*time.Minute))
	self.Usage.Quality.Set(usage.CPU, usage.Measured)
	self.Usage.Sum[usage.CPU] = self.Usage.Sum[usage.CPU].Add(90e9)
	for line, want := range map[string][]string{
		"usage --self": {"web-1 ", "make ", "90.000 s", "complete through "}, "usage --self -o json": {string(v1.JSON(v1.SelfOf(self)))},
		"usage --self -o csv": {"node,workload,nodes,", "web-1,make,1,", ",90,"},
	} {
		out, err := run(strings.Fields(line)...)
		for _, w := range want {
			if err != nil || !strings.Contains(out, w) {
				t.Errorf("mete %s: %v, no %q in\n%s", line, err, w, out)
			}
		}
	}
	// Averages of reservations are over their own time: of 4 minutes in which the pod reserved 2 CPUs, it was measured for two.
	self.Reserved = 4 * time.Minute
	for r, ns := range map[usage.Resource]int64{usage.CPUReserved: 480e9, usage.CPULimit: 720e9, usage.ReservedTime: 480e9, usage.CPULimitedTime: 240e9} {
		self.Usage.Present |= usage.SetOf(r)
		self.Usage.Quality.Set(r, usage.Measured)
		self.Usage.Sum[r] = self.Usage.Sum[r].Add(ns)
	}
	self.Usage.Unused[0].Add(query.Unused{Sum: unit.Sum{}.Add(390e9), Quality: usage.Measured})
	for line, want := range map[string]string{
		"usage --self --reserved":                 `web-1 +make +0\.750 +2\.000 +3\.000 \(50%\) +1\.625 `,
		"usage --self --columns cpu,cpu-reserved": `web-1 +make +90\.000 s +2\.000\n`,
		"usage --self":                            `web-1 +make +90\.000 s +0\.750 `,
		"usage --self -o json":                    `"reserved_for_seconds":240,(.|\n)*"cpu_reserved_seconds":480,(.|\n)*"cpu_unused_seconds":390,`,
	} {
		if out, err := run(strings.Fields(line)...); err != nil || !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("mete %s: %v, no %s in\n%s", line, err, want, out)
		}
	}
	// In a pod the token is in a file, which the kubelet writes.
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("of-the-pod\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Run("in a pod", func(t *testing.T) {
		t.Setenv("METE_SELF_TOKEN", "")
		t.Setenv("METE_SELF_TOKEN_FILE", file)
		self.Name.Kind, self.Name.Name = workload.Pod, "web-1"
		if out, err := run("usage", "--self"); err != nil || !strings.Contains(out, "web-1 ") || shown != "/prefix/v1/self Bearer of-the-pod" {
			t.Errorf("%v, shown %q:\n%s", err, shown, out)
		}
		self.Usage.Present, self.Usage.Covered = 0, unit.Sum{}
		if out, err := run("usage", "--self"); err != nil || !strings.Contains(out, "nothing is booked of this pod") {
			t.Errorf("%v:\n%s", err, out)
		}
	})
	for line, want := range map[string]string{"usage --self --by user": "--self with --by", "usage --self -o xml": "xml", "usage --self --server http://127.0.0.1": "--self with --server"} {
		if _, err := run(strings.Fields(line)...); !errors.Is(err, fault.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("mete %s: %v, want %s", line, err, want)
		}
	}
	for name, set := range map[string]func(*testing.T){
		"no URL":          func(t *testing.T) { t.Setenv("METE_SELF_URL", "") },
		"no token":        func(t *testing.T) { t.Setenv("METE_SELF_TOKEN", "") },
		"no file of it":   func(t *testing.T) { t.Setenv("METE_SELF_TOKEN", ""); t.Setenv("METE_SELF_TOKEN_FILE", file+"x") },
		"another URL":     func(t *testing.T) { t.Setenv("METE_SELF_URL", s.URL+"/v1/usage") },
		"in the clear":    func(t *testing.T) { t.Setenv("METE_SELF_URL", "http://mete.example.org/v1/self") },
		"TLS, no CA":      func(t *testing.T) { t.Setenv("METE_SELF_URL", "https://127.0.0.1:1/v1/self") },
		"CA that is gone": func(t *testing.T) { t.Setenv("METE_SELF_CA", filepath.Join(t.TempDir(), "none")) },
		"CA that is none": func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "ca.pem")
			if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
				t.Fatal(err)
			}
			t.Setenv("METE_SELF_URL", "https://127.0.0.1:1/v1/self")
			t.Setenv("METE_SELF_CA", file)
		},
	} {
		t.Run(name, func(t *testing.T) {
			set(t)
			if _, err := run("usage", "--self"); !errors.Is(err, fault.ErrInvalid) {
				t.Errorf("%v", err)
			}
		})
	}
}
