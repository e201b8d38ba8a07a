package libvirt

import (
	"cmp"
	"encoding/xml"
	"fmt"
	"maps"
	"strings"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/x/text"
)

// A Domain is what libvirt says of a running virtual machine.
type Domain struct {
	// Name is what OpenStack calls it, else its title, else the name of its domain; never "".
	Name          string
	User, Project string            // its owner in OpenStack; "" without
	Labels        map[string]string // those below, of what is known

	uuid string
	pid  int
}

// Labels of virtual machines.
const (
	LabelDomain    = "domain"     // the name of its domain, as virsh has it
	LabelFlavor    = "flavor"     // the name of its flavor in OpenStack
	LabelProjectID = "project-id" // the id of its project in OpenStack, where several projects can have one name
	LabelUserID    = "user-id"    // the id of its user in OpenStack, likewise
)

// maxText limits a text in bytes. OpenStack has 255 characters, libvirt no limit.
const maxText = 253

// A status is the file of a running domain (src/conf/domain_conf.c, virDomainObjFormat).
type status struct {
	XMLName xml.Name `xml:"domstatus"`
	PID     int      `xml:"pid,attr"` // of its process
	Domain  struct {
		Name  string `xml:"name"`
		UUID  string `xml:"uuid"`
		Title string `xml:"title"`
		// Nova's metadata has the namespace 1.1 since 2020, before that 1.0 (nova/virt/libvirt/config.py).
		Metadata struct {
			Nova   instance `xml:"http://openstack.org/xmlns/libvirt/nova/1.1 instance"`
			Nova10 instance `xml:"http://openstack.org/xmlns/libvirt/nova/1.0 instance"`
		} `xml:"metadata"`
	} `xml:"domain"`
}

// An instance is what Nova says of a domain. Users choose the name of an instance, administrators all others.
type instance struct {
	Name   string `xml:"name"`
	Flavor struct {
		Name string `xml:"name,attr"`
	} `xml:"flavor"`
	User    owner `xml:"owner>user"`
	Project owner `xml:"owner>project"`
}

// An owner is a user or project of OpenStack.
type owner struct {
	ID   string `xml:"uuid,attr"`
	Name string `xml:",chardata"`
}

// name returns the name of an owner, or its id where Nova does not know the name and writes that it is not available.
func (o owner) name() string {
	if name := clean(o.Name); name != "N/A" {
		return name
	}
	return clean(o.ID)
}

// clean cuts a text, in memory of its own.
func clean(s string) string { return strings.Clone(text.Cut(strings.TrimSpace(s), maxText)) }

// parse reads the file of a running domain. Its errors wrap fault.ErrInvalid.
func parse(b []byte) (*Domain, error) {
	var s status
	if err := xml.Unmarshal(b, &s); err != nil {
		return nil, fmt.Errorf("%w: %w", fault.ErrInvalid, err)
	}
	if s.PID <= 0 || s.Domain.Name == "" || len(s.Domain.UUID) != 36 {
		return nil, fmt.Errorf("no process, name or UUID of a domain: %w", fault.ErrInvalid)
	}
	nova := s.Domain.Metadata.Nova
	if nova == (instance{}) {
		nova = s.Domain.Metadata.Nova10
	}
	d := &Domain{Name: cmp.Or(clean(nova.Name), clean(s.Domain.Title), clean(s.Domain.Name)), User: nova.User.name(), Project: nova.Project.name(),
		Labels: map[string]string{}, uuid: s.Domain.UUID, pid: s.PID}
	for label, v := range map[string]string{LabelDomain: s.Domain.Name, LabelFlavor: nova.Flavor.Name, LabelProjectID: nova.Project.ID, LabelUserID: nova.User.ID} {
		if v = clean(v); v != "" {
			d.Labels[label] = v
		}
	}
	if d.Name == "" {
		return nil, fmt.Errorf("a domain whose name is white space: %w", fault.ErrInvalid)
	}
	return d, nil
}

// Apply puts the name, owner and labels of the virtual machine into the name of its workload.
func (d *Domain) Apply(n *batch.Name) {
	n.Name, n.User, n.Project, n.Labels = d.Name, d.User, d.Project, d.Labels
}

func (d *Domain) equal(o *Domain) bool {
	return d.Name == o.Name && d.User == o.User && d.Project == o.Project && d.uuid == o.uuid && d.pid == o.pid && maps.Equal(d.Labels, o.Labels)
}
