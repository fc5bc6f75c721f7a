//go:build integration

package integration_test

import (
	"strings"
	"testing"
	"time"
)

// testRefusals: a server that cannot prove who it is, or that speaks TLS where
// plain text is configured or the other way round, gets nothing: Sluice says
// what is wrong and what helps, tries again, never falls back, and goes on once
// that is put right.
func (s *secured) testRefusals(t *testing.T) {
	s.elasticsearch.Allow(t, readRole(t, "run").and(readRole(t, "validate")))
	plainKafka, plainElasticsearch := startKafka(t, nil), startElasticsearch(t, elasticsearchOptions{})
	toPlainKafka, toPlainElasticsearch := newLink(t), newLink(t)
	toPlainKafka.leadTo(plainKafka.address)
	toPlainElasticsearch.leadTo(plainElasticsearch.address)
	stranger := newAuthority(t, "stranger")
	s.put(t, "stranger.pem", stranger.pem())
	kafkaAddress, esURL := s.kafka.address, s.elasticsearch.URL()
	_, kafkaPort, _ := strings.Cut(kafkaAddress, ":")
	_, esPort, _ := strings.Cut(s.elasticsearch.link.address(), ":")
	show := func(by *authority, l leaf, show func(*testing.T, *authority, leaf)) func() {
		return func() { show(t, by, l) }
	}
	for _, test := range []struct {
		name     string
		from, to string // in the configuration
		before   func() // on the server
		after    func() // puts it right; nil: only the configuration could
		says     []string
		link     *link // on which nothing but TLS may be spoken
	}{
		{
			name: "kafka/wrong host name", from: kafkaAddress, to: "localhost:" + kafkaPort,
			says: []string{"localhost", "server_name"}, link: s.kafka.link,
		},
		{
			name: "kafka/unknown authority", from: s.file("kafka-ca.pem"), to: s.file("stranger.pem"),
			after: func() { s.put(t, "stranger.pem", s.kafka.servers.pem()) },
			says:  []string{"unknown authority", "ca_file"}, link: s.kafka.link,
		},
		{
			name:   "kafka/expired certificate",
			before: show(s.kafka.servers, leaf{expired: true}, s.kafka.Show), after: show(s.kafka.servers, leaf{}, s.kafka.Show),
			says: []string{"expired", "renew"}, link: s.kafka.link,
		},
		{
			name: "kafka/plain text where TLS is set", from: kafkaAddress, to: toPlainKafka.address(),
			says: []string{"using TLS when the broker is not expecting it"}, link: toPlainKafka,
		},
		{
			name: "kafka/TLS where plain text is set", from: s.kafkaTLS(), to: "",
			says: []string{"kafka.tls.enabled"},
		},
		{
			name: "elasticsearch/wrong host name", from: esURL, to: "https://localhost:" + esPort,
			says: []string{"localhost", "server_name"}, link: s.elasticsearch.link,
		},
		{
			name: "elasticsearch/unknown authority", from: s.file("elasticsearch-ca.pem"), to: s.file("stranger.pem"),
			before: func() { s.put(t, "stranger.pem", stranger.pem()) },
			after:  func() { s.put(t, "stranger.pem", s.elasticsearch.servers.pem()) },
			says:   []string{"unknown authority", "ca_file"}, link: s.elasticsearch.link,
		},
		{
			name:   "elasticsearch/expired certificate",
			before: show(s.elasticsearch.servers, leaf{expired: true}, s.elasticsearch.Show), after: show(s.elasticsearch.servers, leaf{}, s.elasticsearch.Show),
			says: []string{"expired", "renew"}, link: s.elasticsearch.link,
		},
		{
			name: "elasticsearch/plain text where TLS is set", from: esURL, to: "https://" + toPlainElasticsearch.address(),
			says: []string{"does not speak TLS"}, link: toPlainElasticsearch,
		},
		{
			name: "elasticsearch/TLS where plain text is set", from: esURL, to: strings.Replace(esURL, "https", "http", 1),
			says: []string{"https://"},
		},
	} {
		if !everything() && !strings.HasSuffix(test.name, "unknown authority") && !strings.HasSuffix(test.name, "where TLS is set") {
			continue
		}
		t.Run(test.name, func(t *testing.T) {
			f := s.flow(t)
			s.kafka.Allow(t, f.acls(t, "run", "dead-letters", "validate")...)
			if test.before != nil {
				test.before()
			}
			config := f.config("")
			if test.from != "" {
				config = strings.ReplaceAll(config, test.from, test.to)
			}
			if strings.Contains(config, "http://") { // what would have no effect is refused
				config = strings.Replace(config, "  tls: {ca_file: \""+s.file("elasticsearch-ca.pem")+"\"}\n", "", 1)
			}
			f.produce(t, 5, "")
			if strings.HasPrefix(test.name, "elasticsearch/expired") { // until the node has read its files
				await(t, 30*time.Second, "validate to be refused", func() error {
					if code, said := sluiceSays(t, config, "validate"); code == 0 {
						return errorString(said)
					}
					return nil
				})
			}
			sluice := startSluice(t, config)
			said := sluice.AwaitWord(t, 30*time.Second, test.says...)
			t.Logf("%.400s", said)
			log := sluice.log.tail()
			code, validated := sluiceSays(t, config, "validate")
			for _, word := range test.says {
				if !strings.Contains(log, word) {
					t.Errorf("the log does not say %q:\n%s", word, log)
				}
				if code != 1 || !strings.Contains(validated, word) {
					t.Errorf("validate does not say %q, exit code %d:\n%s", word, code, validated)
				}
			}
			if n := sluice.Metrics().Sum("sluice_records_total", `outcome="indexed"`); n != 0 {
				t.Errorf("%v records were written all the same", n)
			}
			if test.after != nil {
				test.after()
				f.settled(t, sluice)
			}
			if test.link != nil && test.link.Plain() != 0 {
				t.Errorf("%d connections began without TLS", test.link.Plain())
			}
			end(t, sluice)
		})
	}
}

type errorString string

func (e errorString) Error() string { return string(e) }
