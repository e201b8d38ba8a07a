package relay

import "time"

// Hurry makes folders wait less for their virtual machines. It comes before Run.
func (h *Host) Hurry(wait time.Duration) { h.files.wait = wait }

// Write puts what was published into files, in place of Run.
func (h *Host) Write() { h.files.put(time.Now(), h.entries(nil)) }
