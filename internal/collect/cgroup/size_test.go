package cgroup

import (
	"testing"
	"unsafe"
)

// TestNodeSize checks that a node fits into 896 bytes, one of the sizes in which Go allocates, 8 of which it needs
// itself. There is one for each group, and the next larger size is 1024.
func TestNodeSize(t *testing.T) {
	t.Parallel()
	if size, most := unsafe.Sizeof(node{}), uintptr(896-8); size > most {
		t.Errorf("a node has %d bytes, want at most %d", size, most)
	}
}
