// Mete-nvml reads NVIDIA's accelerators for mete-agent. It is a separate program because NVIDIA's
// library needs a dynamic loader, which the agent does not have.
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
