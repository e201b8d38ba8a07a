package main

import (
	"bytes"
	"fmt"
	"strings"
)

// A file is in a package.
type file struct {
	path string // absolute
	mode int64
	body []byte
	// config says that the file is the user's to change: an upgrade keeps it.
	config bool
}

// A pack is a package of the programs, before it has a format.
type pack struct {
	name, summary, about string
	needs, recommends    []string // other packages of mete, of the same version
	units                []string // services of systemd
	states               []string // directories below /var/lib and /var/cache, removed when the package is purged
	files                []file
}

const (
	homepage   = "https://mete.dev/mete"
	maintainer = "mete maintainers <maintainers@mete.dev>"
	license    = "Apache-2.0"
)

// packs returns the packages. Units name programs in /usr/local/bin, where a build from source
// installs them; packages have them in /usr/bin.
func (b *built) packs() ([]pack, error) {
	all := []pack{
		{
			name: "mete", summary: "measures what every job uses: commands",
			about:  "mete run reports the CPU time, memory, disk, network and energy of a command; mete top shows a machine live; mete usage and others query a server.",
			states: []string{"mete"},
			files:  []file{{path: "/usr/bin/mete"}},
		},
		{
			name: "mete-agent", summary: "measures what every job uses: agent",
			about:      "The agent measures a machine and sends its figures to a server. Set the server in /etc/mete/agent.env, put a token into /etc/mete/token, and enable mete-agent.service.",
			recommends: []string{"mete"}, units: []string{"mete-agent"}, states: []string{"mete-agent"},
			files: []file{
				{path: "/usr/bin/mete-agent"}, {path: "/usr/bin/mete-nvml"},
				{path: "/etc/mete/agent.env", mode: 0o644, config: true, body: []byte(agentEnvironment)},
				// Only root reads the token; systemd passes it to the agent.
				{path: "/etc/mete/token", mode: 0o600, config: true},
			},
		},
		{
			name: "mete-server", summary: "measures what every job uses: server",
			about: "The server keeps the ledger of many machines, and serves queries and the dashboard: enable mete-server.service. To measure this machine alone, enable mete-up.service.",
			needs: []string{"mete", "mete-agent"}, units: []string{"mete-server", "mete-up"}, states: []string{"mete-server"},
			files: []file{
				{path: "/usr/bin/mete-server"},
				{path: "/etc/mete/server.env", mode: 0o644, config: true, body: []byte(serverEnvironment)},
			},
		},
	}
	for i := range all {
		p := &all[i]
		for j, f := range p.files {
			if name, ok := strings.CutPrefix(f.path, "/usr/bin/"); ok {
				p.files[j].mode, p.files[j].body = 0o755, b.files[name]
			}
		}
		for _, u := range p.units {
			text, err := b.text("deploy/systemd/" + u + ".service")
			if err != nil {
				return nil, err
			}
			p.files = append(p.files, file{path: "/usr/lib/systemd/system/" + u + ".service", mode: 0o644, body: bytes.ReplaceAll(text, []byte("/usr/local/bin/"), []byte("/usr/bin/"))})
		}
		for from, to := range map[string]string{"LICENSE": "copyright", "CHANGELOG.md": "changelog"} {
			text, err := b.text(from)
			if err != nil {
				return nil, err
			}
			p.files = append(p.files, file{path: "/usr/share/doc/" + p.name + "/" + to, mode: 0o644, body: text})
		}
	}
	return all, nil
}

const agentEnvironment = `# The server that this machine sends to, as METE_SERVER=https://HOST:9797
METE_SERVER=
`

const serverEnvironment = `# Flags of mete server (mete server --help), as METE_SERVER_FLAGS=--name mete.example.org
METE_SERVER_FLAGS=
`

// names returns the unit files of a package.
func (p *pack) names() string {
	var all []string
	for _, u := range p.units {
		all = append(all, u+".service")
	}
	return strings.Join(all, " ")
}

// Scripts run in a chroot and in containers too, where no systemd runs.
const ifSystemd = "if [ -d /run/systemd/system ]; then\n"

// reload makes systemd read units, and restarts those that run after an upgrade.
func (p *pack) reload() string {
	if len(p.units) == 0 {
		return ""
	}
	return ifSystemd + "\tsystemctl daemon-reload\n\tsystemctl try-restart " + p.names() + "\nfi\n"
}

// stop stops and disables the units.
func (p *pack) stop() string {
	if len(p.units) == 0 {
		return ""
	}
	return ifSystemd + "\tsystemctl disable --now " + p.names() + "\nfi\n"
}

// forget makes systemd forget removed units.
func (p *pack) forget() string {
	if len(p.units) == 0 {
		return ""
	}
	return ifSystemd + "\tsystemctl daemon-reload\n\tsystemctl reset-failed " + p.names() + " 2>/dev/null || true\nfi\n"
}

// purge removes all data.
func (p *pack) purge() string {
	var text strings.Builder
	for _, s := range p.states {
		// Those of services with a dynamic user are in private.
		fmt.Fprintf(&text, "rm -rf /var/lib/private/%s /var/lib/%[1]s /var/cache/private/%[1]s /var/cache/%[1]s\n", s)
	}
	return text.String()
}
