package cli

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// other is the group of the commands that are about the program itself.
const other = "Other commands:"

// AddGroup adds commands to root as a group of the list of commands in its help. The help shows groups
// and commands in the order in which they were added.
func AddGroup(root *cobra.Command, title string, commands ...*cobra.Command) {
	cobra.EnableCommandSorting = false
	title += ":"
	root.AddGroup(&cobra.Group{ID: title, Title: title})
	for _, c := range commands {
		c.GroupID = title
		root.AddCommand(c)
	}
}

// groupRest puts the commands of root that have no group into a last one, if root has groups.
func groupRest(root *cobra.Command) {
	if len(root.Groups()) == 0 {
		return
	}
	root.AddGroup(&cobra.Group{ID: other, Title: other})
	rest := slices.DeleteFunc(slices.Clone(root.Commands()), func(c *cobra.Command) bool { return c.GroupID != "" })
	for _, c := range rest {
		root.RemoveCommand(c)
		c.GroupID = other
		root.AddCommand(c)
	}
	root.SetHelpCommandGroupID(other)
	root.SetCompletionCommandGroupID(other)
}

// GroupTitle returns the title of the group of a command, without its colon.
func GroupTitle(c *cobra.Command) string { return strings.TrimSuffix(c.GroupID, ":") }
