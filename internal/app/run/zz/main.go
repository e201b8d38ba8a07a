package main

import (
	"context"
	"errors"
	"fmt"
	"github.com/spf13/cobra"
	"mete.dev/mete/internal/app/run"
	"mete.dev/mete/internal/fault"
	"os"
)

func main() {
	root := &cobra.Command{Use: "mete", SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(run.Command(), run.Report())
	err := root.ExecuteContext(context.Background())
	if err == nil {
		return
	}
	code := 1
	if e, ok := errors.AsType[*run.Exit](err); ok {
		code = e.Code
		if e.Err == nil {
			os.Exit(code)
		}
	}
	fmt.Fprintln(os.Stderr, "mete: error:", err)
	if h := fault.Hint(err); h != "" {
		fmt.Fprintln(os.Stderr, "hint:", h)
	}
	os.Exit(code)
}
