package embedded

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// A member whose connection breaks while it waits in a rebalance loses its part
// in the group once its time is over, and no other member does.
func TestSessionOfABrokenJoinEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		k := mustKafka(t, KafkaConfig{Virtual: true, Options: []kfake.Opt{kfake.BrokerConfigs(map[string]string{"group.initial.rebalance.delay.ms": "0"})}})
		defer k.Close()
		join := func(c *kgo.Client, id string) (*kmsg.JoinGroupResponse, error) {
			req := kmsg.NewPtrJoinGroupRequest()
			req.Group, req.MemberID, req.ProtocolType = "g", id, "consumer"
			req.SessionTimeoutMillis, req.RebalanceTimeoutMillis = 6000, 10_000
			p := kmsg.NewJoinGroupRequestProtocol()
			p.Name = "range"
			req.Protocols = append(req.Protocols, p)
			return req.RequestWith(ctx, c)
		}
		named := func(c *kgo.Client) string {
			t.Helper()
			resp, err := join(c, "")
			if err != nil || resp.ErrorCode != kerr.MemberIDRequired.Code {
				t.Fatalf("%v, error code %d", err, resp.ErrorCode)
			}
			return resp.MemberID
		}
		stays := mustClient(t, k)
		defer stays.Close()
		a := named(stays)
		sync := func(generation int32) {
			t.Helper()
			req := kmsg.NewPtrSyncGroupRequest()
			req.Group, req.MemberID, req.Generation = "g", a, generation
			if resp, err := req.RequestWith(ctx, stays); err != nil || resp.ErrorCode != 0 {
				t.Fatalf("%v, error code %d", err, resp.ErrorCode)
			}
		}
		first, err := join(stays, a)
		if err != nil || first.ErrorCode != 0 {
			t.Fatalf("%v, error code %d", err, first.ErrorCode)
		}
		sync(first.Generation)

		breaks := mustClient(t, k)
		b := named(breaks)
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			_, _ = join(breaks, b) // is not answered
		}()
		synctest.Wait()
		<-time.After(time.Second)
		breaks.Close()
		<-gone
		second, err := join(stays, a)
		if err != nil || second.ErrorCode != 0 || len(second.Members) != 2 {
			t.Fatalf("%v, error code %d, %d members", err, second.ErrorCode, len(second.Members))
		}
		sync(second.Generation)

		began, generation := time.Now(), second.Generation
		for len(k.GroupInfo("g").Members) != 1 {
			if time.Since(began) > time.Minute {
				t.Fatal("the member is still there")
			}
			<-time.After(2 * time.Second)
			req := kmsg.NewPtrHeartbeatRequest()
			req.Group, req.MemberID, req.Generation = "g", a, generation
			resp, err := req.RequestWith(ctx, stays)
			if err != nil {
				t.Fatal(err)
			}
			if resp.ErrorCode == kerr.RebalanceInProgress.Code {
				third, err := join(stays, a)
				if err != nil || third.ErrorCode != 0 {
					t.Fatalf("%v, error code %d", err, third.ErrorCode)
				}
				generation = third.Generation
				sync(generation)
			}
		}
		if id := k.GroupInfo("g").Members[0].MemberID; id != a {
			t.Errorf("member %s is left, want %s", id, a)
		}
	})
}

// A cluster that ends meanwhile leaves nothing behind.
func TestSessionsEndWithTheCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := mustKafka(t, KafkaConfig{Virtual: true, Topics: map[string]int32{"events": 1}})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := k.Produce(ctx, numbered(1)...); err != nil {
			t.Fatal(err)
		}
		consume(ctx, t, k, 1, func(*kgo.Client) {})
		k.Close()
		<-time.After(time.Hour)
	})
}
