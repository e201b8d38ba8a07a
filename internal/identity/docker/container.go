package docker

import (
	"cmp"
	"maps"
	"strings"

	"mete.dev/mete/internal/model/batch"
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
	jobLabel       = "mete.dev/job"
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

// isID reports whether a text is the id of a container.
func isID(s string) bool { return len(s) == 64 && strings.Trim(s, "0123456789abcdef") == "" }

// identify returns what is kept of a container with these labels, nil without an id and a name.
func identify(id, name, image string, labels map[string]string) *Container {
	name = cut(strings.TrimPrefix(name, "/"))
	if !isID(id) || name == "" {
		return nil
	}
	c := &Container{ID: id, Name: name, Labels: map[string]string{}}
	first := func(keys ...string) string {
		for _, k := range keys {
			if v := labels[k]; v != "" {
				return cut(v)
			}
		}
		return ""
	}
	c.Job = first(jobLabel, swarmService, composeProject, podmanProject)
	if image != "" {
		c.Labels[LabelImage] = cut(image)
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

// cut returns at most maxText bytes of a text.
func cut(s string) string {
	if len(s) > maxText {
		s = s[:maxText]
	}
	return strings.ToValidUTF8(s, "")
}
