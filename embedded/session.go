package embedded

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// WatchSessions ends those of members of classic groups that are not heard of
// any more, as brokers do, until it is told to stop. kfake forgets it of a member
// whose connection broke while it waited for the answer to a JoinGroup or
// SyncGroup, for good if no rebalance follows: nobody is given its partitions
// then. A [Kafka] does so by itself. It must be called before members join; client
// are the options of a client that reaches the cluster.
func WatchSessions(cluster *kfake.Cluster, client ...kgo.Opt) (stop func()) {
	s := &sessions{cluster: cluster, client: client, of: map[sessionKey]*session{}}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.observe()
	return s.close
}

type sessions struct {
	cluster *kfake.Cluster
	client  []kgo.Opt
	ctx     context.Context // ends with the watch
	cancel  context.CancelFunc
	looks   sync.WaitGroup // under way

	mu     sync.Mutex
	closed bool
	of     map[sessionKey]*session
}

// sessionKey is a member of a group: its instance id, which a successor takes
// over, or its member id.
type sessionKey struct{ group, instance, member string }

type session struct {
	timeout time.Duration // of the session
	wait    time.Duration // how long a member may wait for an answer, and be silent
	timer   *time.Timer
	missed  bool
}

func keyOf(group, member string, instance *string) sessionKey {
	if instance != nil {
		return sessionKey{group: group, instance: *instance}
	}
	return sessionKey{group: group, member: member}
}

// observe hears of all that members ask for.
func (s *sessions) observe() {
	see := func(key kmsg.Key, fn func(kmsg.Request)) {
		s.cluster.ControlKey(int16(key), func(req kmsg.Request) (kmsg.Response, error, bool) {
			s.cluster.KeepControl()
			fn(req)
			return nil, nil, false
		})
	}
	see(kmsg.JoinGroup, func(req kmsg.Request) {
		r := req.(*kmsg.JoinGroupRequest)
		if r.MemberID != "" || r.InstanceID != nil { // else it is given an id first, and comes back
			s.begin(keyOf(r.Group, r.MemberID, r.InstanceID), r)
		}
	})
	see(kmsg.SyncGroup, func(req kmsg.Request) {
		r := req.(*kmsg.SyncGroupRequest)
		s.heard(keyOf(r.Group, r.MemberID, r.InstanceID))
	})
	see(kmsg.Heartbeat, func(req kmsg.Request) {
		r := req.(*kmsg.HeartbeatRequest)
		s.heard(keyOf(r.Group, r.MemberID, r.InstanceID))
	})
}

func (s *sessions) begin(key sessionKey, r *kmsg.JoinGroupRequest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	if old := s.of[key]; old != nil {
		old.timer.Stop()
	}
	n := &session{timeout: time.Duration(r.SessionTimeoutMillis) * time.Millisecond, wait: time.Duration(r.RebalanceTimeoutMillis) * time.Millisecond}
	n.timer = time.AfterFunc(n.timeout+n.wait, func() { s.silent(key, n) })
	s.of[key] = n
}

func (s *sessions) heard(key sessionKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.of[key]; n != nil && !s.closed {
		n.missed = false
		n.timer.Reset(n.timeout + n.wait)
	}
}

// silent ends a session unless a rebalance is prepared, which may keep members
// waiting longer than each of them asked for, or was a moment ago.
func (s *sessions) silent(key sessionKey, n *session) {
	s.mu.Lock()
	if s.closed || s.of[key] != n {
		s.mu.Unlock()
		return
	}
	s.looks.Add(1)
	before := n.missed
	s.mu.Unlock()
	defer s.looks.Done()

	over, missed := false, before
	client, err := kgo.NewClient(s.client...)
	if err == nil {
		defer client.Close()
		over, missed = s.end(client, key, before)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed || s.of[key] != n:
	case over:
		delete(s.of, key)
	case n.timer.Reset(n.timeout): // it was heard of meanwhile
	default:
		n.missed = missed
	}
}

// end removes a member from its group if it was missed before, and says whether
// it is none any more, or else whether it is missed now. Brokers that do not
// answer are asked again later.
func (s *sessions) end(client *kgo.Client, key sessionKey, before bool) (over, missed bool) {
	describe := kmsg.NewPtrDescribeGroupsRequest()
	describe.Groups = []string{key.group}
	resp, err := describe.RequestWith(s.ctx, client)
	if err != nil || len(resp.Groups) != 1 || resp.Groups[0].ErrorCode != 0 {
		return false, before
	}
	g := resp.Groups[0]
	i := slices.IndexFunc(g.Members, func(m kmsg.DescribeGroupsResponseGroupMember) bool {
		return keyOf(key.group, m.MemberID, m.InstanceID) == key
	})
	switch {
	case i < 0:
		return true, false
	case g.State == "PreparingRebalance":
		return false, false
	case !before:
		return false, true
	}
	leave := kmsg.NewPtrLeaveGroupRequest()
	leave.Group = key.group
	m := kmsg.NewLeaveGroupRequestMember()
	m.MemberID, m.InstanceID = g.Members[i].MemberID, g.Members[i].InstanceID
	leave.Members = append(leave.Members, m)
	left, err := leave.RequestWith(s.ctx, client)
	return err == nil && left.ErrorCode == 0, true
}

func (s *sessions) close() {
	s.mu.Lock()
	s.closed = true
	for _, n := range s.of {
		n.timer.Stop()
	}
	s.mu.Unlock()
	s.cancel()
	s.looks.Wait()
}
