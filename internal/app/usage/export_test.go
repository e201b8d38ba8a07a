package usage

import "time"

// A slow machine may need longer than a shell waits.
func init() { completionLimit = time.Hour }
