//go:build !torture

// Package failpoint names the places at which a program may die with the most
// harm, so that tests can kill it there.
//
// In programs as they are shipped [At] does nothing. Built with the tag
// torture, the environment says where to die: METE_CRASH=point@3 kills the
// process, as SIGKILL does, the third time that it comes by.
package failpoint

// At marks a place. Its name says what has just been done and what has not.
func At(point string) {}
