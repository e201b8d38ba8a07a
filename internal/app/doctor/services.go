package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/api/client"
	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/identity/docker"
	"mete.dev/mete/internal/identity/libvirt"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/x/httpx"
)

// services is about the server, the agent and the units on this machine.
func (d *doctor) services(ctx context.Context, states []state) (out []Check) {
	for i := range states {
		if states[i].kind == serverState {
			out = append(out, localServer(ctx, &states[i], d.version))
		}
	}
	if d.agent.Status != "" {
		out = append(out, agentStatus(ctx, d.agent.Status))
	}
	out = append(out, containerNames(d.agent.Agent.Containers)...)
	out = append(out, domainNames(d.agent.Agent.Domains)...)
	return append(out, d.units(ctx)...)
}

// containerNames is about the daemons that name containers. It does not connect: that may start a daemon. A socket
// that cannot be found is worth a line only if a setting names it.
func containerNames(sockets []string) (out []Check) {
	usual := docker.Sockets()
	for _, s := range sockets {
		if s == docker.None {
			continue
		}
		const figures = "containers are named by their ids"
		info, err := os.Stat(s)
		switch {
		case err != nil && slices.Contains(usual, s):
		case err != nil:
			out = append(out, of("containers", Missing, "%s", err).figures(figures).do("start the daemon, or correct the setting container_socket"))
		case info.Mode()&fs.ModeSocket == 0:
			out = append(out, of("containers", Failed, "%s is not a socket", s).figures(figures).do("correct the setting container_socket"))
		case unix.Faccessat(unix.AT_FDCWD, s, unix.W_OK, unix.AT_EACCESS) != nil:
			out = append(out, of("containers", Limited, "this user has no right to connect to %s", s).figures(figures).
				do("docs/guide/docker.md says which right the agent needs, and what else that right allows"))
		default:
			out = append(out, of("containers", OK, "this user has the right to connect to %s", s))
		}
	}
	return out
}

// domainNames is about the files by which libvirt's virtual machines are named. A directory that cannot be found is worth a
// line only if a setting names it.
func domainNames(dir string) (out []Check) {
	const figures = "virtual machines are named by their domains"
	if dir == libvirt.None {
		return nil
	}
	n, err := libvirt.Count(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist) && dir == libvirt.Directory:
	case errors.Is(err, fs.ErrPermission):
		out = append(out, of("domains", Limited, "this user has no right to read %s", dir).figures(figures).do("run mete as root, or with CAP_DAC_READ_SEARCH, as the unit mete-agent does"))
	case err != nil:
		out = append(out, of("domains", Missing, "%s", err).figures(figures).do("correct the setting libvirt"))
	default:
		out = append(out, of("domains", OK, "this user has the right to read %s; virtual machines: %d", dir, n))
	}
	return out
}

// localServer asks the server of a state directory over its socket.
func localServer(ctx context.Context, s *state, version string) Check {
	socket := filepath.Join(s.dir, v1.AdminSocket)
	if errors.Is(s.err, fs.ErrNotExist) {
		return noServer(socket, s.holder)
	}
	local := client.NewLocal(s.dir)
	h, err := local.Health(ctx)
	switch {
	case denied(err):
		return of("server", Limited, "%s", err).do(fault.Hint(err))
	case errors.Is(err, fault.ErrUnavailable):
		return noServer(socket, s.holder)
	case err != nil:
		return failed("server", err)
	}
	p, _ := local.Probe(ctx) // the version is optional
	return healthCheck(socket, h, p.Version, version)
}

// noServer is the check of a server that does not answer; holder is the process that has its state
// locked, 0 if none has.
func noServer(socket string, holder int) Check {
	if holder != 0 {
		return of("server", Failed, "process %d has the state, and does not answer at %s", holder, socket).
			do(fmt.Sprintf("see its log; if it hangs: kill %d, and start it again: agents send what it did not take", holder))
	}
	return of("server", Missing, "none answers at %s", socket).
		do("mete up serves this machine, mete server many; systemctl enable --now mete-up starts the one of the package")
}

// healthCheck judges the answer of a server. own is the version of this program.
func healthCheck(socket string, h *v1.Health, version, own string) Check {
	var nodes []string
	for _, s := range []string{"live", "silent", "behind", "revoked"} {
		if n := h.Nodes[s]; n > 0 {
			nodes = append(nodes, fmt.Sprintf("%d %s", n, s))
		}
	}
	if len(nodes) == 0 {
		nodes = []string{"none"}
	}
	found := fmt.Sprintf("it answers at %s; nodes: %s", socket, strings.Join(nodes, ", "))
	if version != "" {
		found += "; version " + version
	}
	switch s := h.Server; {
	case s != nil && s.Violations > 0:
		return of("server", Failed, "%s; %d sums of parts were not their whole", found, s.Violations).figures("some may be wrong").do("mete check, and report the defect with its output")
	case s != nil && s.Missed > 0:
		return of("server", Limited, "%s; the metrics took nothing of %s", found, plural(int(s.Missed), "batch")).figures("charts have gaps until they are rebuilt; the ledger has all")
	case version != "" && version != own:
		return of("server", Limited, "%s; the installed one is %s", found, own).do("restart it, so that it runs the installed version")
	case h.Nodes["silent"]+h.Nodes["behind"] > 0:
		return of("server", Limited, "%s", found).figures("those of silent nodes, and of nodes behind, are late or absent").do("mete nodes names them; docs/faq.md says why a node is silent")
	}
	return of("server", OK, "%s", found)
}

// agentStatus asks the agent of this machine at its status address.
func agentStatus(ctx context.Context, address string) Check {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/healthz", nil)
	if err != nil {
		return failed("agent", err)
	}
	c := &http.Client{CheckRedirect: httpx.NoRedirect}
	defer c.CloseIdleConnections()
	a, err := httpx.Do(c, r, 64<<10)
	if err != nil {
		return of("agent", Missing, "none answers at %s (that in mete up has no such address)", address).do("mete-agent sends this machine's figures to a server; systemctl enable --now mete-agent starts the one of the package")
	}
	return agentAnswer(address, a.StatusCode, string(a.Body))
}

// agentAnswer judges the answer of an agent's /healthz.
func agentAnswer(address string, status int, body string) Check {
	first, more, _ := strings.Cut(strings.TrimSpace(body), "\n")
	switch {
	case status == http.StatusServiceUnavailable:
		return of("agent", Failed, "at %s: %s", address, first).figures("windows are lost").do("see the state group, and the agent's log: journalctl -u mete-agent")
	case status != http.StatusOK || first != "ok":
		return of("agent", Limited, "the program that answers at %s is not an agent of mete: status %d", address, status).do("choose another address with the setting status")
	case more != "":
		return of("agent", Limited, "it answers at %s: %s", address, more).figures("use outside of what it sees is booked to system").do("docs/guide/container.md names the rights")
	}
	return of("agent", OK, "it answers at %s, and keeps its windows", address)
}

// unitNames are the units of the packages.
var unitNames = []string{"mete-up.service", "mete-server.service", "mete-agent.service"}

// units asks systemd for the units, where it runs.
func (d *doctor) units(ctx context.Context) []Check {
	if _, err := d.host.ReadDir("/run/systemd/system"); err != nil {
		return []Check{of("systemd", OK, "not here: nothing to check")}
	}
	out, err := exec.CommandContext(ctx, "systemctl", append([]string{"show", "--property=Id,LoadState,ActiveState,SubState,UnitFileState,Result,User"}, unitNames...)...).Output()
	if err != nil {
		return []Check{of("systemd", Limited, "systemctl show: %s", err)}
	}
	return unitChecks(string(out))
}

// unitChecks judges the output of systemctl show: a block of properties for each unit.
func unitChecks(show string) (out []Check) {
	for block := range strings.SplitSeq(strings.TrimSpace(show), "\n\n") {
		p := map[string]string{}
		for line := range strings.Lines(block) {
			k, v, _ := strings.Cut(strings.TrimSpace(line), "=")
			p[k] = v
		}
		id := p["Id"]
		found := fmt.Sprintf("%s (%s), %s at boot", p["ActiveState"], p["SubState"], p["UnitFileState"])
		switch {
		case id == "" || p["LoadState"] == "not-found":
		case p["LoadState"] != "loaded":
			out = append(out, of(id, Failed, "systemd says %s", p["LoadState"]).do("systemctl status "+id))
		case p["ActiveState"] == "failed", p["SubState"] == "auto-restart":
			out = append(out, of(id, Failed, "%s: %s", found, p["Result"]).do("journalctl -u "+id+" -n 20"))
		case p["ActiveState"] == "active" && p["UnitFileState"] == "disabled":
			out = append(out, of(id, Limited, "%s", found).figures("there are none after the next boot").do("systemctl enable "+id))
		case p["ActiveState"] == "active":
			out = append(out, of(id, OK, "%s", found))
		default:
			out = append(out, of(id, Missing, "%s", found).do("if it should run: systemctl enable --now "+id))
		}
	}
	if len(out) == 0 {
		out = append(out, of("systemd", Missing, "no unit of mete is installed").do("install a package, or copy deploy/systemd"))
	}
	return out
}

// server is about the server that the user names; without one there is nothing.
func (d *doctor) server(ctx context.Context) []Check {
	if d.target.URL == "" && d.getenv("METE_SERVER") == "" {
		return nil
	}
	c, err := d.target.Open()
	if err != nil {
		return []Check{failed("reachable", err)}
	}
	name := d.target.URL
	if name == "" {
		name = d.getenv("METE_SERVER")
	}
	if u, err := url.Parse(name); err == nil {
		name = u.Redacted()
	}
	began := time.Now()
	p, err := c.Probe(ctx)
	return probeChecks(name, &p, err, began, d.version)
}

// probeChecks judges what a server showed. began is the time of the request, own this program's version.
func probeChecks(name string, p *client.Probe, err error, began time.Time, own string) []Check {
	if p.Time.IsZero() && err != nil { // no answer
		c := failed("reachable", err).figures("what an agent sends there waits in its spool")
		if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, io.ErrUnexpectedEOF) {
			c.Do = "check the address, and the way to it"
		}
		return []Check{c}
	}
	out := []Check{of("reachable", OK, "%s answers within %s", name, p.Took.Round(time.Millisecond))}
	if !p.Expires.IsZero() {
		out = append(out, of("trusted", OK, "its certificate is of the authority that the token names, until %s; names: %s", date(p.Expires), strings.Join(p.Names, " ")))
	}
	switch {
	case denied(err):
		out = append(out, of("token", Failed, "%s", err).do(fault.Hint(err)))
	case err != nil:
		out = append(out, failed("token", err))
	default:
		out = append(out, of("token", OK, "it may read: role viewer, or this server's own user"))
		out = append(out, versionOf(p.Version, own))
	}
	return append(out, offset(began.Add(p.Took/2), p.Time, p.Took))
}

// versionOf compares the version of a server with this program's.
func versionOf(server, own string) Check {
	switch {
	case server == "":
		return of("version", Limited, "the server does not say its version, as versions before this one do").do("upgrade servers before agents: docs/upgrade.md")
	case server != own:
		return of("version", OK, "the server has %s, this program %s: an agent that is newer than its server keeps what the server cannot read", server, own).do("upgrade servers before agents: docs/upgrade.md")
	}
	return of("version", OK, "%s, as this program", server)
}
