package main

import (
	"os"
	"slices"
	"strings"

	"mete.dev/mete/internal/ui/cli"
	"mete.dev/mete/internal/x/sibling"
)

// A farCommand is a command of mete-server with its short help.
type farCommand struct{ name, short string }

var serverCommands = []farCommand{
	{"check", "Check a ledger for contradictions"},
	{"config", "Show the configuration, and where each value is from"},
	{"doctor", "Check what this machine can measure, and what is missing"},
	{"server", "Run a server that keeps the ledger of many machines"},
	{"up", "Measure this machine and serve a page of it"},
}

// execServer replaces this process by mete-server if the command line names one of its commands,
// directly, for help or for completion.
func execServer(args []string) {
	if !isServerCommand(args) {
		return
	}
	err := sibling.Exec("mete-server", "mete", args, os.Stderr)
	cli.Explain(os.Stderr, "mete", err)
	os.Exit(cli.Code(err))
}

// isServerCommand reports whether a command line is for mete-server.
func isServerCommand(args []string) bool {
	words := args
	if len(words) > 1 && slices.Contains([]string{"help", "__complete", "__completeNoDesc"}, words[0]) {
		if words = words[1:]; args[0] != "help" {
			words = words[:len(words)-1] // the word that the user is typing
		}
	}
	for _, w := range words {
		if strings.HasPrefix(w, "-") {
			continue // flags before a command take no separate value
		}
		for _, c := range serverCommands {
			if c.name == w {
				return true
			}
		}
		return false
	}
	return false
}
