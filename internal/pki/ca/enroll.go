package ca

import (
	"cmp"
	"context"
	"crypto"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/oklog/ulid/v2"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/pki/token"
)

// enrollments is the state of enrollment. assign serializes the assignment of nodes, so that
// concurrent enrollments of one machine see each other.
type enrollments struct {
	assign sync.Mutex
	recent map[[sha256.Size]byte]enrollment // by claim key
	made   map[string][]time.Time           // times of new nodes within the last day: of clones by root, of jobs by token
}

// An enrollment is one that used up a token. Its machine may repeat it for a while, in case the
// response was lost, at no cost and with the same node.
type enrollment struct {
	at   time.Time
	node string // "" if no node was assigned
}

const (
	repeatWindow    = time.Hour
	maxClonesPerDay = 10 // of one node and its clones
	// maxJobNodesPerDay limits the machines whose jobs one token enrolls: each node has quotas of its own,
	// and the machine ids are the user's words.
	maxJobNodesPerDay = 1000
)

// An authorization is the right by which a claim is granted.
type authorization struct {
	actor    string // token id, node id, or "local"
	role     registry.Role
	cluster  string
	node     string            // the node that it is a clone of, or ""
	root     string            // the first node of the clones, or itself
	token    string            // id of the token, or ""
	forJobs  bool              // the token is for jobs
	bound    string            // the node or downstream server that the claim becomes again, or ""
	local    bool              // over the trusted loopback
	claimKey [sha256.Size]byte // key in recent; zero for the loopback, which uses no token
}

// enroll handles a claim from an address. peer is set if the request had a certificate; local says
// that it came through TrustLocal.
func (a *Authority) enroll(ctx context.Context, c token.Claim, peer *token.Principal, local bool, from netip.Addr) (token.Grant, error) {
	if c.Role == "" {
		c.Role = registry.Agent
	}
	if err := checkClaim(c); err != nil {
		return token.Grant{}, err
	}
	var key crypto.PublicKey
	var err error
	if !local {
		// Before a token is used.
		if key, err = parseCSR(c.CSR); err != nil {
			return token.Grant{}, err
		}
	}
	a.assign.Lock()
	defer a.assign.Unlock()
	now := time.Now().UTC()
	by, err := a.authorize(ctx, c, key, peer, local, from, now)
	if err != nil {
		return token.Grant{}, err
	}
	n := registry.Node{Cluster: by.cluster, Name: c.Name, MachineID: c.Machine, Boot: c.Boot, At: now, Token: by.token, Certified: registry.Forever}
	if !local {
		n.Certified, n.KeyHash = now.Add(a.cfg.CertificateLife), hashKey(key)
	}
	if n.ID = a.recent[by.claimKey].node; n.ID == "" {
		if err := a.assignNode(ctx, &n, by); err != nil {
			return token.Grant{}, err
		}
	}
	g := token.Grant{Node: n.ID, Cluster: n.Cluster, Role: by.role, JobKey: a.jobKeyFor(by.role, n.ID)}
	if local {
		g.CA = string(a.CAPEM()) // identifies the ledger
		return g, nil
	}
	a.recent[by.claimKey] = enrollment{now, n.ID}
	return a.issueCertificate(g, n.IsJobs(), key, now)
}

// assignNode assigns a node to a machine and stores it.
func (a *Authority) assignNode(ctx context.Context, n *registry.Node, by authorization) error {
	action, what := "node.enrol", "new"
	n.ID = by.bound
	if by.role == registry.Agent && n.ID == "" {
		var others []string
		var err error
		if by.node != "" {
			n.Root, others = by.root, []string{by.node}
		} else if n.ID, others, err = a.findNode(ctx, n, by); err != nil {
			return err
		}
		if n.ID == "" && len(others) > 0 {
			action, what = "node.clone", "new, as the machine's id is in use by "+strings.Join(others, " ")
			a.log.Warn("a machine with the machine id of another node gets a node id of its own", "machine", n.MachineID, "node", others[0], "name", n.Name,
				"hint", "if it is that node and lost its state: mete token create --node "+others[0])
		}
	}
	put := a.reg.PutNode
	if by.role == registry.Upstream {
		put = a.reg.PutSource
	}
	if n.ID == "" {
		if by.forJobs {
			if err := a.checkDay(by.token, maxJobNodesPerDay, n.At); err != nil {
				return err
			}
			a.made[by.token] = append(a.made[by.token], n.At)
		}
		n.ID = ulid.Make().String()
	} else {
		what = "again"
	}
	if err := put(ctx, *n); err != nil {
		return err
	}
	if by.node != "" {
		a.made[by.root] = append(a.made[by.root], n.At)
	}
	a.log.Info("enrolled", "node", n.ID, "role", string(by.role), "cluster", n.Cluster, "name", n.Name, "by", by.actor, "as", what)
	return a.audit(ctx, by.actor, action, n.ID, fmt.Sprintf("%s: role %s, cluster %q, name %q, machine %q, boot %q", what, by.role, n.Cluster, n.Name, n.MachineID, n.Boot))
}

// candidates returns the nodes that a machine of this cluster may be: rights in one cluster give
// none to nodes of another.
func (a *Authority) candidates(ctx context.Context, nodes []registry.Node, cluster string) (mine []registry.Node, err error) {
	for _, n := range nodes {
		revoked, err := a.registryCache.revoked(ctx, n.ID)
		if err != nil {
			return nil, err
		}
		if n.Cluster == cluster && !revoked {
			mine = append(mine, n)
		}
	}
	return mine, nil
}

// findNode returns the node that a machine is already, or "". others are nodes with its machine id
// that it may not become.
//
// Machine id and boot id are not secret: every user of the machine can read them, and its containers
// can. So a claim with a token becomes a node again only with the key with which that node enrolled,
// or if no certificate of it is valid. One of the trusted loopback becomes a node again unless a
// token enrolled that one, which then has a certificate. The jobs of a machine, which may have no state directory that
// lasts, become a node again with the same token too.
func (a *Authority) findNode(ctx context.Context, n *registry.Node, by authorization) (id string, others []string, err error) {
	nodes, err := a.reg.NodesByMachine(ctx, n.MachineID)
	if err != nil {
		return "", nil, err
	}
	if nodes, err = a.candidates(ctx, nodes, n.Cluster); err != nil {
		return "", nil, err
	}
	var own []registry.Node
	for _, o := range nodes {
		boot, isLive := a.cfg.LiveBoot(o.ID)
		seen, _ := a.CertificateExpiry(o.ID)
		ended := n.At.After(o.Certified) && n.At.After(seen) && !isLive
		switch {
		case isLive && boot != n.Boot:
			others = append(others, o.ID) // it cannot be this machine
		case by.local && o.Token == "" && o.Root == "", ended, o.KeyHash != "" && o.KeyHash == n.KeyHash, n.IsJobs() && o.Token != "" && o.Token == by.token:
			own = append(own, o)
		default:
			others = append(others, o.ID)
		}
	}
	return matchNode(own, *n, a.cfg.LiveBoot), others, nil
}

// matchNode returns the node that a machine is most likely, of those that it may be, or "".
func matchNode(nodes []registry.Node, n registry.Node, live func(string) (string, bool)) string {
	var best registry.Node
	score := func(o registry.Node) (s int) {
		if o.KeyHash != "" && o.KeyHash == n.KeyHash {
			s += 8
		}
		if boot, ok := live(o.ID); ok && boot == n.Boot {
			s += 4
		}
		if o.Boot == n.Boot {
			s += 2
		}
		if o.Name == n.Name {
			s++
		}
		return s
	}
	for _, o := range nodes {
		if best.ID == "" || cmp.Or(cmp.Compare(score(o), score(best)), o.At.Compare(best.At), cmp.Compare(o.ID, best.ID)) > 0 {
			best = o
		}
	}
	return best.ID
}

// authorize finds the right for a claim, and takes a use of it.
func (a *Authority) authorize(ctx context.Context, c token.Claim, key crypto.PublicKey, peer *token.Principal, local bool, from netip.Addr, now time.Time) (authorization, error) {
	if a.recent == nil {
		a.recent, a.made = map[[sha256.Size]byte]enrollment{}, map[string][]time.Time{}
	}
	switch {
	case local:
		if c.Role != registry.Agent {
			return authorization{}, fmt.Errorf("role %q without a token: %w", c.Role, fault.ErrDenied)
		}
		return authorization{actor: actor, role: c.Role, cluster: a.cfg.Cluster, local: true}, nil
	case peer != nil && c.Token != "":
		return authorization{}, fmt.Errorf("both a certificate and a token: %w", fault.ErrInvalid)
	case peer != nil:
		by := authorization{actor: peer.Node, role: peer.Role, cluster: peer.Cluster, node: peer.Node, claimKey: claimKeyOf("certificate "+peer.Node, key, c)}
		if peer.Role != registry.Agent || c.Role != registry.Agent {
			return authorization{}, fmt.Errorf("role %s by a certificate of role %s: %w", c.Role, peer.Role, fault.ErrDenied)
		}
		old, err := a.reg.Node(ctx, peer.Node)
		if errors.Is(err, fault.ErrNotFound) { // the ledger was restored from a backup
			old, err = Recall(*peer, now), nil
		}
		if err := cmp.Or(err, sameKindOf(old, c)); err != nil {
			return authorization{}, err
		}
		by.root = cmp.Or(old.Root, peer.Node)
		return by, a.chargeNode(by, now)
	}
	return a.chargeToken(ctx, c, key, from, now)
}

// chargeNode takes one of the clones that a node and its clones may create in a day.
func (a *Authority) chargeNode(by authorization, now time.Time) error {
	if e, ok := a.recent[by.claimKey]; ok && now.Sub(e.at) < repeatWindow {
		return nil
	}
	if err := a.checkDay(by.root, maxClonesPerDay, now); err != nil {
		return err
	}
	a.rememberClaim(by.claimKey, now)
	return nil
}

// checkDay returns an error with the time to wait if a node and its clones, or a token for jobs, made the
// most nodes that they may within a day.
func (a *Authority) checkDay(by string, most int, now time.Time) error {
	day := slices.DeleteFunc(a.made[by], func(t time.Time) bool { return now.Sub(t) >= 24*time.Hour })
	a.made[by] = day
	if len(day) < most {
		return nil
	}
	return &fault.RetryError{Err: fmt.Errorf("%s made %d nodes within a day: %w", by, len(day), fault.ErrUnavailable), After: day[0].Add(24 * time.Hour).Sub(now)}
}

// chargeToken takes a use of the claim's token.
func (a *Authority) chargeToken(ctx context.Context, c token.Claim, key crypto.PublicKey, from netip.Addr, now time.Time) (authorization, error) {
	if c.Token == "" {
		return authorization{}, unidentifiedError{fault.WithHint(fmt.Errorf("neither a certificate nor a token: %w", fault.ErrDenied), "mete token create makes a token on the server's machine")}
	}
	tok, err := token.Parse(c.Token)
	if err != nil {
		return authorization{}, err
	}
	t, isKnown, err := a.registryCache.token(ctx, tok)
	if err == nil && !isKnown {
		if wait := a.wrongTokens.take(from, now); wait > 0 {
			return authorization{}, &fault.RetryError{Err: fmt.Errorf("too many wrong tokens: %w", fault.ErrUnavailable), After: wait}
		}
		a.registryCache.invalidate() // another process may have made it
		t, isKnown, err = a.registryCache.token(ctx, tok)
	}
	if err != nil {
		return authorization{}, err
	}
	by := authorizationBy(t, claimKeyOf(c.Token, key, c))
	if isKnown {
		by.bound, err = a.useToken(ctx, t, c, hashKey(key), by.claimKey, now)
	} else {
		err = fault.WithHint(fmt.Errorf("token %s: %w", tok.ID(), fault.ErrDenied), "mete token list shows the server's tokens; this one may belong to another server")
	}
	if errors.Is(err, fault.ErrDenied) && fault.Hint(err) == "" {
		err = fault.WithHint(err, "mete token create makes a new one on the server's machine")
	}
	if err != nil {
		return authorization{}, errors.Join(err, a.recordDenial(ctx, tok.ID(), c, err, isKnown, from, now))
	}
	if t.Role == registry.Agent && registry.IsJobsMachine(c.Machine) {
		a.log.Warn("jobs enrolled with a token that also enrolls machines", "token", t.ID, "name", c.Name, "hint", "give users tokens of mete token create --role job")
	}
	return by, nil
}

// useToken takes a use of a token for a claim, and none if its key used the token before: its owner
// may not have received the answer. It returns the node or downstream server that the claim becomes
// again, or "".
func (a *Authority) useToken(ctx context.Context, t registry.Token, c token.Claim, key string, claimKey [sha256.Size]byte, now time.Time) (bound string, err error) {
	role := c.Role
	if t.Role == registry.Job {
		if err := checkJobClaim(c); err != nil {
			return "", err
		}
		role = registry.Job
	}
	if t.Role == role {
		if bound, err = a.findBound(ctx, t, c, key); err != nil {
			return "", err
		}
		if e, ok := a.recent[claimKey]; ok && now.Sub(e.at) < repeatWindow && t.Revoked.IsZero() {
			return bound, nil
		}
	}
	if boot, isLive := a.cfg.LiveBoot(bound); isLive && boot != c.Boot && t.Node == "" {
		bound, key = "", "" // another machine has a copy of the key
	}
	if _, err := a.reg.UseToken(ctx, t.ID, t.Hash, role, key, now); err != nil {
		return "", err
	}
	a.rememberClaim(claimKey, now)
	return bound, nil
}

// authorizationBy returns the right that a token gives. The jobs of a machine have a certificate
// like that of an agent.
func authorizationBy(t registry.Token, paid [sha256.Size]byte) authorization {
	by := authorization{actor: t.ID, role: t.Role, cluster: t.Cluster, token: t.ID, claimKey: paid}
	if by.forJobs = t.Role == registry.Job; by.forJobs {
		by.role = registry.Agent
	}
	return by
}

// findBound returns the node or downstream server that a claim with a token becomes again, or "": the
// one that the token is made for, or that of the key.
func (a *Authority) findBound(ctx context.Context, t registry.Token, c token.Claim, key string) (id string, err error) {
	if id = t.Node; id == "" {
		id, err = a.reg.Enrolled(ctx, t.ID, key)
	}
	if err == nil && id == "" && t.Role == registry.Upstream {
		id, err = a.findSource(ctx, t.Cluster, c.Machine, key)
	}
	if err == nil && id != "" {
		err = a.checkBound(ctx, id, c)
	}
	return id, err
}

// findSource returns the downstream server with a ledger and a key, or "". A server states the id of
// its ledger, which is not secret: the servers above and their readers know it. So if a server with
// another key enrolled with this ledger, the claim is refused. As another source the rows of the
// ledger would count twice.
func (a *Authority) findSource(ctx context.Context, cluster, ledger, keyHash string) (string, error) {
	sources, err := a.reg.Sources(ctx, ledger)
	if err != nil {
		return "", err
	}
	if sources, err = a.candidates(ctx, sources, cluster); err != nil || len(sources) == 0 {
		return "", err
	}
	if i := slices.IndexFunc(sources, func(s registry.Node) bool { return s.KeyHash == keyHash }); i >= 0 {
		return sources[i].ID, nil
	}
	return "", fault.WithHint(fmt.Errorf("server %s enrolled with ledger %.60q and another key: %w", sources[0].ID, ledger, fault.ErrDenied),
		"if it is that server and lost its identity: mete token create --role upstream --node "+sources[0].ID)
}

// checkBound checks a claim by which a machine or server becomes a node again.
func (a *Authority) checkBound(ctx context.Context, node string, c token.Claim) error {
	if err := a.CheckAllowed(ctx, node); err != nil {
		return err
	}
	n, err := a.reg.Node(ctx, node)
	if errors.Is(err, fault.ErrNotFound) { // a downstream server, or the ledger was restored from a backup
		return nil
	}
	return cmp.Or(err, sameKindOf(n, c))
}

// sameKindOf refuses a claim by which the jobs of a machine would become a machine, or a machine
// its jobs.
func sameKindOf(n registry.Node, c token.Claim) error {
	if n.IsJobs() == registry.IsJobsMachine(c.Machine) {
		return nil
	}
	return fmt.Errorf("node %s of machine %q as machine %.60q: %w", n.ID, n.MachineID, c.Machine, fault.ErrDenied)
}

// checkJobClaim checks a claim with a token for jobs, which enrolls nothing but the jobs of a
// machine.
func checkJobClaim(c token.Claim) error {
	if c.Role == registry.Agent && registry.IsJobsMachine(c.Machine) {
		return nil
	}
	return fault.WithHint(fmt.Errorf("the token enrolls users for mete run --server, not machines: %w", fault.ErrDenied), "mete token create --role agent makes one for a machine")
}

// recordDenial records a refusal, within the rate limit.
func (a *Authority) recordDenial(ctx context.Context, id string, c token.Claim, why error, isKnown bool, from netip.Addr, now time.Time) error {
	if !errors.Is(why, fault.ErrDenied) || isKnown && a.wrongTokens.take(from, now) > 0 {
		return nil
	}
	a.log.Warn("not enrolled", "err", why, "from", from, "name", c.Name)
	return a.audit(ctx, id, "enrol.denied", c.Name, fmt.Sprintf("%v; from %s, machine %q", why, from, c.Machine))
}

// rememberClaim records that a claim was charged, and forgets old ones.
func (a *Authority) rememberClaim(paid [sha256.Size]byte, now time.Time) {
	for k, e := range a.recent {
		if now.Sub(e.at) >= repeatWindow {
			delete(a.recent, k)
		}
	}
	a.recent[paid] = enrollment{at: now}
}

// encodeKey returns a public key that parseCSR returned.
func encodeKey(key crypto.PublicKey) []byte {
	return must(x509.MarshalPKIXPublicKey(key))
}

// hashKey returns the hash by which the registry knows a public key.
func hashKey(key crypto.PublicKey) string {
	sum := sha256.Sum256(encodeKey(key))
	return hex.EncodeToString(sum[:])
}

// claimKeyOf identifies a claim: the same key, machine and boot repeat an earlier one.
func claimKeyOf(by string, key crypto.PublicKey, c token.Claim) [sha256.Size]byte {
	return sha256.Sum256(must(json.Marshal([]any{strings.TrimSpace(by), encodeKey(key), c.Machine, c.Boot}))) // strings and bytes
}

// Recall returns a node that a ledger restored from a backup lacks, by all that the certificate of its
// holder says: without the name and the machine id.
func Recall(peer token.Principal, now time.Time) registry.Node {
	n := registry.Node{ID: peer.Node, Cluster: peer.Cluster, Name: peer.Node, At: now}
	if peer.Jobs {
		n.MachineID = registry.JobsMachineID(n.ID)
	}
	return n
}

// isRecalled reports whether a node is as Recall returned it.
func isRecalled(n *registry.Node) bool {
	return n.MachineID == "" || n.MachineID == registry.JobsMachineID(n.ID)
}

func (a *Authority) issueCertificate(g token.Grant, forJobs bool, key crypto.PublicKey, now time.Time) (token.Grant, error) {
	n := registry.Node{ID: g.Node, Cluster: g.Cluster}
	if forJobs {
		n.MachineID = registry.JobsMachineID(n.ID)
	}
	cert, err := a.ca.signClient(now, a.cfg.CertificateLife, n, g.Role, key)
	if err != nil {
		return token.Grant{}, err
	}
	g.Certificate, g.CA = string(encodeCertificate(cert.Raw)), string(a.CAPEM())
	return g, nil
}

// renewCertificate issues a new certificate for the same node. The old one stays valid until it
// expires.
func (a *Authority) renewCertificate(ctx context.Context, c token.Claim, peer token.Principal) (token.Grant, error) {
	key, err := parseCSR(c.CSR)
	if err != nil {
		return token.Grant{}, err
	}
	if err := checkClaim(c); err != nil {
		return token.Grant{}, err
	}
	now := time.Now().UTC()
	forJobs := false
	if peer.Role == registry.Agent {
		// A ledger restored from a backup may not have the node, or only what its certificate says.
		n, err := a.reg.Node(ctx, peer.Node)
		if errors.Is(err, fault.ErrNotFound) {
			n, err = Recall(peer, now), nil
		}
		if err == nil && isRecalled(&n) {
			n.Name, n.MachineID, n.Boot, n.At = c.Name, c.Machine, c.Boot, now
			if err = sameKindOf(Recall(peer, now), c); err == nil {
				err = a.reg.PutNode(ctx, n)
			}
		}
		if err == nil {
			err = a.reg.Certify(ctx, peer.Node, now.Add(a.cfg.CertificateLife))
		}
		if err != nil {
			return token.Grant{}, err
		}
		forJobs = n.IsJobs()
	}
	g, err := a.issueCertificate(token.Grant{Node: peer.Node, Cluster: peer.Cluster, Role: peer.Role, JobKey: a.jobKeyFor(peer.Role, peer.Node)}, forJobs, key, now)
	if err != nil {
		return token.Grant{}, err
	}
	return g, a.audit(ctx, peer.Node, "node.renew", peer.Node, "")
}

// EnrollLocal returns the node of this machine, for an agent in the same process.
func (a *Authority) EnrollLocal(ctx context.Context, machine, boot, name string) (registry.Node, error) {
	g, err := a.enroll(ctx, token.Claim{Machine: machine, Boot: boot, Name: name}, nil, true, netip.Addr{})
	if err != nil {
		return registry.Node{}, err
	}
	return a.reg.Node(ctx, g.Node)
}

// checkClaim checks length and characters of a claim's texts.
func checkClaim(c token.Claim) error {
	for _, f := range []struct {
		name, text string
		max        int
	}{{"machine_id", c.Machine, 128}, {"boot", c.Boot, 64}, {"name", c.Name, 253}} {
		if f.text == "" || len(f.text) > f.max || strings.ContainsFunc(f.text, func(r rune) bool { return !unicode.IsPrint(r) || r == unicode.ReplacementChar }) {
			return fmt.Errorf("%s %.60q: %w", f.name, f.text, fault.ErrInvalid)
		}
	}
	if registry.IsVolumesMachine(c.Machine) || registry.IsVolumesMachine(c.Name) {
		return fmt.Errorf("machine %.60q, name %.60q: of the volumes of a cluster: %w", c.Machine, c.Name, fault.ErrInvalid)
	}
	// Nodes are named as CLUSTER/NAME, so a slash would be ambiguous.
	if strings.Contains(c.Name, "/") {
		return fault.WithHint(fmt.Errorf("name %.60q: %w", c.Name, fault.ErrInvalid), "give the machine a host name without a slash")
	}
	return nil
}
