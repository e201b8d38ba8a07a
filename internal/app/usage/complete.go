package usage

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	v1 "mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/ui/cli"
)

// maxValues is how many values completion offers.
const maxValues = 100

// completionLimit is how long completion waits for a server. Tests raise it.
var completionLimit = 2 * time.Second

// completeWhere completes --where: a dimension, then its values in the range of the other flags.
func (q *queryFlags) completeWhere(s *serverFlags) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, word string) (words []cobra.Completion, _ cobra.ShellCompDirective) {
		dimension, _, hasValue := strings.Cut(word, "=")
		if !hasValue {
			for _, d := range v1.Dimensions() {
				words = append(words, d+"=")
			}
			return words, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
		}
		for _, v := range q.values(cmd.Context(), s, dimension) {
			words = append(words, dimension+"="+v)
		}
		return words, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
	}
}

// completeJobs completes the only argument, the name of a job.
func (q *queryFlags) completeJobs(s *serverFlags) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) (words []cobra.Completion, _ cobra.ShellCompDirective) {
		if len(args) == 0 {
			words = q.values(cmd.Context(), s, string(query.ByJob))
		}
		return words, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
	}
}

// values returns the values of a dimension that used most CPU time in the range of the flags. It is silent where the
// server does not answer, and leaves out values that a shell could take for more than a word.
func (q *queryFlags) values(ctx context.Context, s *serverFlags, dimension string) (list []string) {
	of, err := v1.ParseQuery(map[string][]string{v1.ParamFrom: {q.from}, v1.ParamTo: {q.to}, v1.ParamBy: {dimension}}, time.Now())
	if err != nil {
		return nil
	}
	of.Limit = maxValues
	c, err := s.Open()
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, completionLimit)
	defer cancel()
	a, err := c.Usage(ctx, v1.UsageQuery{Query: of})
	if err != nil {
		return nil
	}
	for i := range a.Groups {
		// The rows idle and system are residuals, which a filter of another dimension than kind does not match.
		keys := a.Groups[i].Keys
		if len(keys) == 1 && cli.IsPlainWord(keys[0]) && (dimension == string(query.ByKind) || v1.ResidualKind(a.By, keys) == "") {
			list = append(list, keys[0])
		}
	}
	return list
}
