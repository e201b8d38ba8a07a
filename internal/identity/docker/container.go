package docker

import (
	"cmp"
	"maps"
	"strings"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/x/text"
)

// A Container is what a daemon says of a container.
type Container struct {
	ID   string // 64 hexadecimal digits
	Name string // never ""
	// Job is what it is a part of: what the label mete.dev/job says, else its service in a swarm, else its project of
	// Compose; "" without.
	Job    string
	Labels map[string]string // image, and the name within its project
}

// Labels of containers.
const (
	swarmService   = "com.docker.swarm.service.name"
	composeProject = "com.docker.compose.project"
	composeService = "com.docker.compose.service"
	podmanProject  = "io.podman.compose.project"
	podmanService  = "io.podman.compose.service"

	// LabelImage is the label of a workload with the name of its container's image.
	LabelImage = "image"
)

// maxText limits a name in bytes. Docker limits neither names nor labels.
const maxText = 253

// identify returns what is kept of a container with these labels, nil without an id and a name.
func identify(id, name, image string, labels map[string]string) *Container {
	name = text.Cut(strings.TrimPrefix(name, "/"), maxText)
	if !workload.IsContainerID(id) || name == "" {
		return nil
	}
	c := &Container{ID: id, Name: name, Labels: map[string]string{}}
	first := func(keys ...string) string {
		for _, k := range keys {
			if v := labels[k]; v != "" {
				return text.Cut(v, maxText)
			}
		}
		return ""
	}
	c.Job = first(batch.LabelJob, swarmService, composeProject, podmanProject)
	if image != "" {
		c.Labels[LabelImage] = text.Cut(image, maxText)
	}
	// As for the containers of a pod: a name that its replicas share, and its successor has too.
	c.Labels[batch.LabelContainer] = cmp.Or(first(composeService, podmanService, swarmService), name)
	return c
}

// Apply puts the container's name, job and labels into the name of its workload.
func (c *Container) Apply(n *batch.Name) {
	n.Name, n.Job, n.Labels = c.Name, c.Job, c.Labels
}

func (c *Container) equal(o *Container) bool {
	return c.ID == o.ID && c.Name == o.Name && c.Job == o.Job && maps.Equal(c.Labels, o.Labels)
}
