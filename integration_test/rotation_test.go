//go:build integration

package integration_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

// rotations is how often each credential is replaced.
const rotations = 5

// testRotation replaces everything that proves who is who while records flow:
// nothing is lost, and the process goes on without a restart. How long nothing
// was written is logged, not judged.
func (s *secured) testRotation(t *testing.T) {
	f := s.flow(t)
	s.kafka.Allow(t, f.acls(t, "run", "dead-letters")...)
	keyID := s.elasticsearch.newKey(t, s, "")
	config := strings.NewReplacer(
		"  username: "+sluiceUser+"\n  password_file", "  api_key_file", s.file("basic-password"), s.file("api-key"),
	).Replace(f.config(""))
	sluice := startSluice(t, config)
	stream := startStream(t, s.kafka.Kafka, f.topic)
	written := func() float64 {
		m := sluice.Metrics()
		return m.Sum("sluice_records_total", `outcome="indexed"`) + m.Sum("sluice_records_total", `outcome="deleted"`)
	}
	// flows waits until records were written for a while after the change, and
	// returns the longest time in which none was.
	flows := func(since time.Time) time.Duration {
		t.Helper()
		last, at, longest, began := written(), since, time.Duration(0), time.Time{}
		await(t, 3*time.Minute, "records to flow", func() error {
			if err := sluice.Check(); err != nil {
				return err
			}
			now := time.Now()
			if n := written(); n > last {
				longest = max(longest, now.Sub(at))
				last, at = n, now
				if began.IsZero() {
					began = now
				}
			}
			if began.IsZero() || now.Sub(began) < time.Second {
				return fmt.Errorf("nothing is written since %s", now.Sub(at))
			}
			return nil
		})
		return longest
	}
	t.Logf("undisturbed: at most %d ms between two records", flows(time.Now()).Milliseconds())
	for _, rotation := range []struct {
		what    string
		replace func(n int)
	}{
		{"the authority and certificate of the broker", func(int) {
			next := newAuthority(t, "kafka servers")
			s.put(t, "kafka-ca.pem", s.kafka.servers.pem()+next.pem()) // both, until all brokers have theirs
			s.kafka.Show(t, next, leaf{})
			s.kafka.link.Break()
			flows(time.Now())
			s.put(t, "kafka-ca.pem", next.pem())
			s.kafka.servers = next
			s.kafka.link.Break()
		}},
		{"the authority and certificate of the node", func(int) {
			next := newAuthority(t, "elasticsearch servers")
			s.put(t, "elasticsearch-ca.pem", s.elasticsearch.servers.pem()+next.pem())
			s.elasticsearch.Show(t, next, leaf{})
			s.elasticsearch.awaitSignedBy(t, next)
			s.elasticsearch.link.Break()
			flows(time.Now())
			s.put(t, "elasticsearch-ca.pem", next.pem())
			s.elasticsearch.servers = next
			s.elasticsearch.link.Break()
		}},
		{"the client certificate, and its authority", func(int) {
			next := newAuthority(t, "kafka clients")
			s.kafka.Take(t, next)
			cert, key := next.leaf(t, leaf{})
			s.put(t, "client.pem", cert) // not its key yet: the old pair stays in use
			s.put(t, "client-key.pem", key)
			s.kafka.link.Break()
		}},
		{"the API key, the old one first", func(int) {
			keyID = s.elasticsearch.newKey(t, s, keyID)
		}},
		{"the SASL password, on the broker first", func(n int) {
			password := fmt.Sprintf("sasl-rotated-%d", n)
			s.kafka.SetPassword(t, sluiceUser, password)
			s.kafka.link.Break() // with the old one, nobody gets in any more
			s.put(t, "sasl-password", password)
		}},
	} {
		var took []string
		for n := range rotations {
			began := time.Now()
			rotation.replace(n)
			took = append(took, fmt.Sprintf("%.1f", flows(began).Seconds()))
		}
		t.Logf("%s: nothing was written for %s s", rotation.what, strings.Join(took, ", "))
	}
	stream.end()
	s.kafka.AwaitNoLag(t, time.Minute, f.group, f.topic, sluice.Check)
	end(t, sluice)
	assertLedger(t, sluice)
	compare(t, s.elasticsearch.Documents(t, f.index), stream.want)
	if n := len(s.kafka.ReadAll(t, f.letters)); n != 0 {
		t.Errorf("%d dead letters, want none", n)
	}
}

// newKey takes an API key away ("": none), makes another one with the rights of
// `run`, and writes it into the file. It returns its id.
func (e *securedElasticsearch) newKey(t *testing.T, s *secured, old string) string {
	t.Helper()
	if old != "" {
		e.Do(t, http.MethodDelete, "/_security/api_key", fmt.Sprintf(`{"ids":[%q]}`, old))
	}
	body, err := json.Marshal(map[string]any{"name": sluiceUser, "role_descriptors": map[string]role{sluiceUser: readRole(t, "run")}})
	must(t, err)
	var made struct {
		ID, Encoded string
	}
	must(t, json.Unmarshal(e.Do(t, http.MethodPost, "/_security/api_key", string(body)), &made))
	s.put(t, "api-key", made.Encoded)
	return made.ID
}
