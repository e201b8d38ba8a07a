package main

import (
	"os"
	"slices"
	"strings"

	"mete.dev/mete/internal/ui/cli"
	"mete.dev/mete/internal/x/reexec"
)

// serverCommands are the commands of mete-server, and what they do.
var serverCommands = []struct{ name, short string }{
	{"server", "Keep the ledger of many machines"},
	{"up", "Measure this machine, keep what is measured, and serve a live page of it"},
}

// execServer becomes mete-server where a command line asks for one of its
// commands, for the help of one or for a completion of one.
func execServer(args []string) {
	if !isServerCommand(args) {
		return
	}
	err := reexec.Exec("mete-server", "mete", args, os.Stderr)
	cli.Explain(os.Stderr, "mete", err)
	os.Exit(cli.Code(err))
}

// isServerCommand says whether a command line is for mete-server.
func isServerCommand(args []string) bool {
	words := args
	if len(words) > 1 && slices.Contains([]string{"help", "__complete", "__completeNoDesc"}, words[0]) {
		if words = words[1:]; args[0] != "help" {
			words = words[:len(words)-1] // the word that is being typed
		}
	}
	for _, w := range words {
		if strings.HasPrefix(w, "-") {
			continue // no flag before a command has a value
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
