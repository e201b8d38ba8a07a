package cli

import (
	"runtime"
	"runtime/debug"
	"strings"
)

// Version describes a program's source version, build and platform, from its build
// information.
func Version(b *debug.BuildInfo) string {
	version := "devel"
	if b == nil {
		return version
	}
	if v := b.Main.Version; v != "" && v != "(devel)" {
		version = v
	}
	var about []string
	settings := map[string]string{}
	for _, s := range b.Settings {
		settings[s.Key] = s.Value
	}
	// A pseudo-version contains the commit already.
	if rev := settings["vcs.revision"]; len(rev) >= 12 && !strings.Contains(version, rev[:12]) {
		about = append(about, "commit "+rev[:12])
	}
	if settings["vcs.modified"] == "true" && !strings.Contains(version, "+dirty") {
		about = append(about, "modified")
	}
	about = append(about, b.GoVersion, runtime.GOOS+"/"+runtime.GOARCH)
	return version + " (" + strings.Join(about, ", ") + ")"
}
