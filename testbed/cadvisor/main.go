// Command cadvisor is cAdvisor as a program of its own. The program that cAdvisor releases is a module that the Go module
// proxy does not have, so this one wires cAdvisor's packages in the same way: their flags with their defaults, the same
// metrics, from the version that the kubelet of this module contains. It has no pages, and asks no cloud what machine this is.
package main

import (
	"flag"
	"net/http"
	"os"
	"time"

	"github.com/google/cadvisor/cache/memory"
	"github.com/google/cadvisor/container"
	_ "github.com/google/cadvisor/container/containerd/install" // finds the containers of containerd
	_ "github.com/google/cadvisor/container/systemd/install"    // leaves out mounts
	_ "github.com/google/cadvisor/fs/overlay/install"           // sizes of containers' file systems
	_ "github.com/google/cadvisor/fs/tmpfs/install"
	_ "github.com/google/cadvisor/fs/vfs/install"
	v2 "github.com/google/cadvisor/info/v2"
	"github.com/google/cadvisor/manager"
	"github.com/google/cadvisor/metrics"
	"github.com/google/cadvisor/utils/sysfs"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// ignored are the metrics that the released program reads only with a flag.
var ignored = container.MetricSet{
	container.MemoryNumaMetrics: {}, container.NetworkTcpUsageMetrics: {}, container.NetworkUdpUsageMetrics: {}, container.NetworkAdvancedTcpUsageMetrics: {},
	container.ProcessSchedulerMetrics: {}, container.ProcessMetrics: {}, container.HugetlbUsageMetrics: {}, container.ReferencedMemoryMetrics: {},
	container.CPUTopologyMetrics: {}, container.ResctrlMetrics: {}, container.CPUSetMetrics: {},
}

func main() {
	klog.InitFlags(nil)
	listen := flag.String("listen", ":8080", "the `address` to listen on")
	flag.Parse()
	if err := run(*listen); err != nil {
		klog.ErrorS(err, "cadvisor")
		os.Exit(1)
	}
}

func run(listen string) error {
	included := container.AllMetrics.Difference(ignored)
	m, err := manager.New(memory.New(2*time.Minute, nil), sysfs.NewRealSysFs(), manager.HousekeepingConfigFlags, included, http.DefaultClient, []string{""}, []string{""}, "", 0)
	if err != nil {
		return err
	}
	if err := m.Start(); err != nil {
		return err
	}
	r := prometheus.NewRegistry()
	r.MustRegister(metrics.NewPrometheusCollector(m, metrics.DefaultContainerLabels, included, clock.RealClock{}, v2.RequestOptions{IdType: v2.TypeName, Count: 1, Recursive: true}),
		metrics.NewPrometheusMachineCollector(m, included))
	http.Handle("/metrics", promhttp.HandlerFor(r, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError}))
	return http.ListenAndServe(listen, nil)
}
