package publish

import "time"

// Hurry sets how long folders wait for their virtual machines. Call it before Run.
func (r *Publisher) Hurry(wait time.Duration) { r.files.keepFor = wait }

// Write writes published shares to files without Run.
func (r *Publisher) Write() { r.files.update(time.Now(), r.entries(nil)) }

// ListenBy makes r listen by open instead of AF_VSOCK. Call it before Run.
func (r *Publisher) ListenBy(open func(port uint32) (Listener, error)) { r.open = open }
