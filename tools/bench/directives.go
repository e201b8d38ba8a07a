package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"mete.dev/mete/internal/delivery/directives"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/directive"
)

// kubeZones is how many zones the cluster has.
const kubeZones = 3

// createNodes creates a node for each machine, with a range of pod addresses, an address, and a zone.
func (k *kubeRun) createNodes(ctx context.Context, from, to int) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(16)
	for i := from; i < to; i++ {
		g.Go(func() error {
			pods := fmt.Sprintf("10.%d.%d.0/24", 64+i>>8, i&255)
			n, err := k.api.CoreV1().Nodes().Create(ctx, &corev1.Node{
				ObjectMeta: metav1.ObjectMeta{Name: originName(i), Labels: map[string]string{corev1.LabelTopologyZone: fmt.Sprintf("zone-%d", i%kubeZones)}},
				Spec:       corev1.NodeSpec{PodCIDR: pods, PodCIDRs: []string{pods}},
			}, metav1.CreateOptions{})
			if err != nil {
				return err
			}
			n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("172.16.%d.%d", i>>8, i&255)}}
			_, err = k.api.CoreV1().Nodes().UpdateStatus(ctx, n, metav1.UpdateOptions{})
			return err
		})
	}
	return g.Wait()
}

// directed counts what machines get as directives.
type directed struct {
	bytes   atomic.Int64 // of answers, headers and bodies
	answers atomic.Int64

	mu    sync.Mutex
	holds map[int]int // how many prefixes have a class, by machine
}

// follow lets the i-th machine follow its directives, until work ends.
func (k *kubeRun) follow(work context.Context, i int) error {
	o := k.fleet.origins[i]
	client := *o.client
	client.Transport = &counting{client.Transport, &k.directed}
	cfg := directives.Default()
	cfg.Node = o.node
	apply := func(section string) directives.Apply {
		return func(content []byte) error {
			if content == nil {
				return nil
			}
			c, err := directive.DecodeClasses(content)
			if err == nil && section == directive.NetworkClasses {
				k.directed.mu.Lock()
				defer k.directed.mu.Unlock()
				k.directed.holds[i] = len(c)
			}
			return err
		}
	}
	f := directives.New(cfg, directives.NewHTTP(o.base, &client), map[string]directives.Apply{directive.NetworkClasses: apply(directive.NetworkClasses), directive.NetworkNode: apply(directive.NetworkNode)},
		func() (batch.Clock, error) { return o.clock(), nil }, slog.New(slog.DiscardHandler))
	return f.Run(work)
}

// awaitDirected waits until all machines know the classes of all nodes.
func (k *kubeRun) awaitDirected(ctx context.Context, nodes int) error {
	for began := time.Now(); ; sleepUntil(ctx, time.Now().Add(200*time.Millisecond)) {
		n := 0
		k.directed.mu.Lock()
		for _, prefixes := range k.directed.holds {
			if prefixes == 2*nodes {
				n++
			}
		}
		k.directed.mu.Unlock()
		if n == len(k.fleet.origins) || ctx.Err() != nil {
			return ctx.Err()
		} else if time.Since(began) > 5*time.Minute {
			return fmt.Errorf("%d of %d machines know the classes of %d nodes after 5 min", n, len(k.fleet.origins), nodes)
		}
	}
}

// A counting transport counts the bytes of answers.
type counting struct {
	http.RoundTripper
	to *directed
}

func (c *counting) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	a, err := c.RoundTripper.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	size := int64(0)
	for name, values := range a.Header {
		for _, v := range values {
			size += int64(len(name) + len(v) + 4)
		}
	}
	c.to.answers.Add(1)
	c.to.bytes.Add(size)
	a.Body = &countingBody{a.Body, c.to}
	return a, nil
}

type countingBody struct {
	io.ReadCloser
	to *directed
}

func (b *countingBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.to.bytes.Add(int64(n))
	return n, err
}
