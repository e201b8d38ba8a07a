package docker

import (
	"maps"
	"strings"

	"mete.dev/mete/internal/model/batch"
)

// A Container is what a daemon says of a container.
type Container struct {
	ID   string // 64 hexadecimal digits
	Name string // "" for a container of a pod of Kubernetes, which the API server of its cluster names
	// Job is what it is a part of: what the label mete.dev/job says, else its service in a swarm, else its project of Compose; ""
	// without.
	Job    string
	Labels map[string]string // image, and the name within its project
}

// Labels of containers.
const (
	jobLabel      = "mete.dev/job"
	podLabel      = "io.kubernetes.pod.uid" // of cri-dockerd
	swarmService  = "com.docker.swarm.service.name"
	composeName   = "com.docker.compose.project"
	composeOne    = "com.docker.compose.service"
	podmanCompose = "io.podman.compose.project"
	podmanService = "io.podman.compose.service"

	// LabelImage is the label of a workload with the name of its container's image.
	LabelImage = "image"
)

// maxText limits a name in bytes. Docker limits neither names nor labels.
const maxText = 253

// identify returns what is kept of a container with these labels, nil if id is not an id.
func identify(id, name, image string, labels map[string]string) *Container {
	if len(id) != 64 || strings.Trim(id, "0123456789abcdef") != "" {
		return nil
	}
	c := &Container{ID: id}
	if labels[podLabel] != "" {
		return c
	}
	first := func(keys ...string) string {
		for _, k := range keys {
			if v := labels[k]; v != "" {
				return cut(v)
			}
		}
		return ""
	}
	c.Name = cut(strings.TrimPrefix(name, "/"))
	c.Job = first(jobLabel, swarmService, composeName, podmanCompose)
	c.Labels = map[string]string{}
	if image != "" {
		c.Labels[LabelImage] = cut(image)
	}
	// As for the containers of a pod: a name that its replicas share, and its successor has too.
	if within := first(composeOne, podmanService); within != "" {
		c.Labels[batch.LabelContainer] = within
	} else if c.Name != "" {
		c.Labels[batch.LabelContainer] = c.Name
	}
	return c
}

// Apply puts the container's name, job and labels into the name of its workload.
func (c *Container) Apply(n *batch.Name) {
	if c.Name == "" {
		return
	}
	n.Name, n.Job, n.Labels = c.Name, c.Job, c.Labels
}

func (c *Container) equal(o *Container) bool {
	return c.ID == o.ID && c.Name == o.Name && c.Job == o.Job && maps.Equal(c.Labels, o.Labels)
}

// cut returns at most maxText bytes of a text.
func cut(s string) string {
	if len(s) > maxText {
		s = s[:maxText]
	}
	return strings.ToValidUTF8(s, "")
}
