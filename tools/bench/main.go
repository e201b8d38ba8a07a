// Bench measures the cost of mete itself on this machine, and compares it with the budgets.
//
//	go run ./tools/bench agent -n 500 -tick 1s -for 60s
//
// Figures are CPU time by the kernel's clocks, on which other load has little influence;
// wall time is never judged.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

const helpText = `usage: go run ./tools/bench agent [-n 500] [-tick 1s] [-for 60s] [-reader bpf,files] [-o text|json]

agent   CPU and memory of mete-agent beside n groups (sleepers, 4 busy, 1 that
        forks) while it keeps and sends what it measures to a real server, with
        the bare floor of reading measured in the same run
run     what mete run adds to a command that does nothing
server  what mete server costs: simulated machines send to a real one as agents
        do. Without flags all that is published, on SQLite and PostgreSQL, which
        takes most of an hour; -part live,full,scale,query,drain,metrics and
        -database sqlite,postgres choose; metrics is against a real Prometheus
kube    what naming pods costs a server: a real API server with 50,000 pods, of
        which some come and go each second, 5000 simulated machines that have
        them, and an outage of the API server; takes about half an hour

Exit code 1 says that a budget was exceeded, 2 that the bench could not run.
`

// build builds one of the project's programs into dir.
func build(dir, program string) (bin string, err error) {
	bin = filepath.Join(dir, program)
	cmd := exec.Command("go", "build", "-ldflags=-s -w", "-o", bin, "./cmd/"+program)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0") // as a release is built
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build ./cmd/%s: %w\n%s", program, err, out)
	}
	return bin, nil
}

func main() {
	if len(os.Args) < 2 {
		fmt.Fprint(os.Stderr, helpText)
		os.Exit(2)
	}
	var over bool
	var err error
	switch os.Args[1] {
	case "agent":
		over, err = agent(os.Args[2:])
	case "run":
		over, err = run(os.Args[2:])
	case "server":
		over, err = serve(os.Args[2:])
	case "kube":
		over, err = measureKube(os.Args[2:])
	case "child":
		err = child(os.Args[2:])
	default:
		fmt.Fprint(os.Stderr, helpText)
		os.Exit(2)
	}
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "bench: error:", err)
		os.Exit(2)
	case over:
		os.Exit(1)
	}
}
