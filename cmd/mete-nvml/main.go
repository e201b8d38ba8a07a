// Mete-nvml tells mete-agent what NVIDIA's accelerators show. It is a program of
// its own since their library needs a dynamic loader, and the agent has none.
package main

import (
	"fmt"
	"os"

	"mete.dev/mete/internal/host/nvml"
)

func main() {
	if len(os.Args) > 1 {
		fmt.Fprintln(os.Stderr, "mete-nvml: error: mete-agent starts this program, without arguments")
		os.Exit(2)
	}
	if err := nvml.Serve(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "mete-nvml: error:", err)
		os.Exit(1)
	}
}
