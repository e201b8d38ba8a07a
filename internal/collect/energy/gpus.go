package energy

import "mete.dev/mete/internal/collect/gpu"

// openGPUs opens the meters of accelerators, which are last in the list.
func (s *Source) openGPUs(mode string) {
	s.gpus, s.gpu = gpu.Open(s.host, mode), len(s.meters)
	s.meters = append(s.meters, s.gpus.Meters()...)
	s.openErrors = append(s.openErrors, s.gpus.OpenErrors()...)
	s.closers = append(s.closers, s.gpus.Close)
}
