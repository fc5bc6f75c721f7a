package consumer

import (
	"context"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/sluicehq/sluice/credentials"
)

// ConfigError is a `kafka` section that cannot work.
type ConfigError struct {
	Key             string // relative to the section, such as sasl.mechanism
	Problem, Remedy string
}

func (e *ConfigError) Error() string {
	return "kafka." + e.Key + ": " + e.Problem + ": " + e.Remedy
}

// partitionBytes is what one fetch asks of one partition: more takes memory
// and gains nothing (a record that is larger comes all the same).
const partitionBytes = 256 << 10

// ClientOptions returns the options that every Kafka client of the process
// needs: brokers, client id, TLS and SASL, which follow their files. The error
// joins *ConfigError and *credentials.Error.
func ClientOptions(cfg Config, log zerolog.Logger) ([]kgo.Opt, error) {
	var errs []error
	if len(cfg.Brokers) == 0 {
		errs = append(errs, &ConfigError{"brokers", "no broker", "name at least one host:port"})
	}
	opts := []kgo.Opt{
		kgo.SeedBrokers(cfg.Brokers...),
		kgo.ClientID(cfg.ClientID),
		kgo.DisableClientMetrics(),
		kgo.WithLogger(&clientLog{log: log}),
	}
	if cfg.TLS.Enabled {
		d, err := cfg.TLS.Dialer()
		if err != nil {
			errs = append(errs, fmt.Errorf("kafka.tls: %w", err))
		} else {
			opts = append(opts, kgo.Dialer(d.DialContext))
		}
	}
	m, err := mechanism(cfg.SASL)
	if err != nil {
		errs = append(errs, err)
	} else if m != nil {
		opts = append(opts, kgo.SASL(m))
	}
	return opts, errors.Join(errs...)
}

// mechanism is the SASL mechanism of cfg; nil: none. Credentials are read for
// each authentication, so that a changed file is picked up.
func mechanism(cfg SASL) (sasl.Mechanism, error) {
	if cfg.Mechanism == "" {
		if cfg.Username != "" || cfg.PasswordFile != "" || cfg.TokenFile != "" || cfg.Password != "" {
			return nil, &ConfigError{"sasl.mechanism", "credentials without a mechanism", "name one: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER or AWS_MSK_IAM"}
		}
		return nil, nil //nolint:nilnil // no SASL is a valid choice
	}
	password, err := credentials.Open(cfg.Password, cfg.PasswordFile)
	if err != nil {
		return nil, fmt.Errorf("kafka.sasl.password: %w", err)
	}
	token, err := credentials.Open("", cfg.TokenFile)
	if err != nil {
		return nil, fmt.Errorf("kafka.sasl.token: %w", err)
	}
	name := strings.ToUpper(cfg.Mechanism)
	if name == "OAUTHBEARER" {
		if cfg.TokenFile == "" {
			return nil, &ConfigError{"sasl.token_file", "OAUTHBEARER without a token", "name the file that holds it"}
		}
		return oauth.Oauth(func(context.Context) (oauth.Auth, error) {
			return oauth.Auth{Token: strings.TrimSpace(token.Get().Reveal())}, nil
		}), nil
	}
	if name == "AWS_MSK_IAM" {
		return mskIAM(cfg.Username, password, token)
	}
	if cfg.Username == "" {
		return nil, &ConfigError{"sasl.username", name + " without a user", "set it"}
	}
	scramAuth := func(context.Context) (scram.Auth, error) {
		return scram.Auth{User: cfg.Username, Pass: password.Get().Reveal()}, nil
	}
	switch name {
	case "PLAIN":
		return plain.Plain(func(context.Context) (plain.Auth, error) {
			return plain.Auth{User: cfg.Username, Pass: password.Get().Reveal()}, nil
		}), nil
	case "SCRAM-SHA-256":
		return scram.Sha256(scramAuth), nil
	case "SCRAM-SHA-512":
		return scram.Sha512(scramAuth), nil
	}
	return nil, &ConfigError{"sasl.mechanism", fmt.Sprintf("%q is unknown", cfg.Mechanism), "use PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER or AWS_MSK_IAM"}
}

// groupOptions are the options of the group consumer beside ClientOptions.
func (c *Consumer) groupOptions() ([]kgo.Opt, error) {
	cfg := c.cfg
	var errs []error
	fail := func(key, problem, remedy string) { errs = append(errs, &ConfigError{key, problem, remedy}) }

	if cfg.GroupID == "" {
		fail("group_id", "empty", "name the group that commits")
	}
	opts, err := subscription(cfg.Topics, c.o.Exclude)
	if err != nil {
		errs = append(errs, err)
	}
	start, err := startOffset(cfg.Reset)
	if err != nil {
		errs = append(errs, err)
	}
	reset := kgo.NoResetOffset()
	switch cfg.OnDataLoss {
	case "", "halt":
	case "resume":
		// Below the log's start the client resumes there; where it cannot tell
		// how much was truncated, it goes back a minute.
		reset = kgo.RewindOffset(time.Minute)
	default:
		fail("on_data_loss", fmt.Sprintf("%q is unknown", cfg.OnDataLoss), "use halt or resume")
	}
	isolation := kgo.ReadCommitted()
	switch cfg.IsolationLevel {
	case "", "read_committed":
	case "read_uncommitted":
		isolation = kgo.ReadUncommitted()
	default:
		fail("isolation_level", fmt.Sprintf("%q is unknown", cfg.IsolationLevel), "use read_committed or read_uncommitted")
	}
	switch cfg.GroupProtocol {
	case "", "classic":
	case "consumer":
		opts = append(opts, kgo.ServerSideBalancer())
	default:
		fail("group_protocol", fmt.Sprintf("%q is unknown", cfg.GroupProtocol), "use classic or consumer")
	}
	if cfg.DrainTimeout >= cfg.RebalanceTimeout {
		fail("drain_timeout", fmt.Sprintf("%s is not below rebalance_timeout (%s): a drain would cost the membership", cfg.DrainTimeout, cfg.RebalanceTimeout), "lower it")
	}
	maxWait := cfg.Fetch.MaxWait
	if maxWait <= 0 {
		maxWait = 500 * time.Millisecond
	}
	// A batch that expands beyond this halts its partition, in place of the
	// process, and all that are unpacked and not yet worked off have no more.
	largest := int(min(max(c.o.Budget.Limit()/2, 1<<20), math.MaxInt32))
	buffers := newBytesPool(largest)
	unpack, err := newDecompressor(largest, buffers)
	if err != nil {
		errs = append(errs, err)
	}
	c.unpack = unpack
	opts = append(opts,
		kgo.ConsumerGroup(cfg.GroupID),
		kgo.Balancers(kgo.CooperativeStickyBalancer()),
		kgo.BlockRebalanceOnPoll(),
		kgo.DisableAutoCommit(),
		kgo.KeepControlRecords(), // so that positions pass transaction markers
		kgo.FetchIsolationLevel(isolation),
		kgo.ConsumeStartOffset(start),
		kgo.ConsumeResetOffset(reset),
		kgo.SessionTimeout(cfg.SessionTimeout),
		kgo.RebalanceTimeout(cfg.RebalanceTimeout),
		kgo.HeartbeatInterval(min(max(cfg.SessionTimeout/15, 100*time.Millisecond), 3*time.Second)),
		kgo.MetadataMaxAge(30*time.Second), // how soon a new topic or partition is seen
		kgo.FetchMaxWait(maxWait),
		kgo.FetchMinBytes(int32(min(max(cfg.Fetch.MinBytes, 1), math.MaxInt32))),
		kgo.FetchMaxBytes(c.fetchBytes()),
		kgo.FetchMaxPartitionBytes(c.fetchPartitionBytes()),
		kgo.WithDecompressor(unpack),
		kgo.WithPools(watchedPool{newRecordPool(), &c.hooks.decoding}, buffers),
		kgo.OnPartitionsAssigned(c.onAssigned),
		kgo.OnPartitionsRevoked(c.onRevoked),
		kgo.OnPartitionsLost(c.onLost),
		kgo.OnOffsetsFetched(c.onOffsetsFetched),
		kgo.AdjustFetchOffsetsFn(c.adjustOffsets),
		kgo.WithHooks(&c.hooks),
	)
	if cfg.InstanceID != "" {
		opts = append(opts, kgo.InstanceID(cfg.InstanceID))
	}
	if cfg.Rack != "" {
		opts = append(opts, kgo.Rack(cfg.Rack))
	}
	return opts, errors.Join(errs...)
}

// What is assumed before the first fetch tells.
const (
	firstBrokers   = 3
	firstExpansion = 16
)

// mostFetched is as much of one broker as is worth fetching at once, however
// large the memory: a hundred of them a second fill a network of 10 Gbit/s.
const mostFetched = 8 << 20

// fetchBytes is the most that one fetch may bring: so much that all brokers'
// fetches, decompressed, fill no more than a quarter of the memory limit. A
// batch that is larger comes whole all the same.
func (c *Consumer) fetchBytes() int32 {
	if n := c.cfg.Fetch.MaxBytes; n > 0 {
		return int32(min(int64(n), math.MaxInt32))
	}
	n := float64(c.o.Budget.Limit()/4) / float64(c.brokers.Load()) / c.expansion
	return int32(min(max(n, 16<<10), mostFetched))
}

// fetchPartitionBytes is the most that one fetch may bring of one partition:
// half of what its queue may hold, decompressed.
func (c *Consumer) fetchPartitionBytes() int32 {
	n := min(float64(c.highMark/2)/c.expansion, partitionBytes)
	return min(int32(max(n, 4<<10)), c.fetchBytes())
}

// fitFetch follows how batches expand when they are decompressed, and how many
// brokers there are. It runs in the poll loop.
func (c *Consumer) fitFetch() {
	compressed, uncompressed := c.hooks.compressed.Load(), c.hooks.uncompressed.Load()
	if compressed < 64<<10 {
		return
	}
	c.hooks.compressed.Add(-compressed)
	c.hooks.uncompressed.Add(-uncompressed)
	// Up at once, down by degrees: too small a fetch costs less than too much
	// memory.
	c.expansion = max(float64(uncompressed)/float64(compressed), 0.9*c.expansion, 1)
	n := c.fetchBytes()
	if d := float64(n) / float64(c.fetching); d < 0.9 || d > 1.1 {
		c.fetching = n
		c.cl.UpdateFetchMaxBytes(n, c.fetchPartitionBytes())
	}
}

// subscription turns `topics` into options. excluded topics, and those that
// begin with __, are never consumed.
func subscription(topics, excluded []string) ([]kgo.Opt, error) {
	var errs []error
	if len(topics) == 0 {
		errs = append(errs, &ConfigError{"topics", "no topic", "name at least one"})
	}
	regex := slices.ContainsFunc(topics, func(t string) bool { return strings.HasPrefix(t, "^") })
	subscribe := make([]string, 0, len(topics))
	for _, t := range topics {
		switch {
		case strings.HasPrefix(t, "^"):
			if _, err := regexp.Compile(t); err != nil {
				errs = append(errs, &ConfigError{"topics", fmt.Sprintf("%q is not a regular expression", t), err.Error()})
			}
			subscribe = append(subscribe, t)
			continue
		case slices.Contains(excluded, t):
			errs = append(errs, &ConfigError{"topics", fmt.Sprintf("%q is where rejected or parked records go", t), "take it out: it would feed itself"})
		case strings.HasPrefix(t, "__") || t == "":
			errs = append(errs, &ConfigError{"topics", fmt.Sprintf("%q is internal to Kafka", t), "take it out"})
		}
		if regex {
			t = "^" + regexp.QuoteMeta(t) + "$"
		}
		subscribe = append(subscribe, t)
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	opts := []kgo.Opt{kgo.ConsumeTopics(subscribe...)}
	if regex {
		exclude := []string{"^__"}
		for _, t := range excluded {
			exclude = append(exclude, "^"+regexp.QuoteMeta(t)+"$")
		}
		opts = append(opts, kgo.ConsumeRegex(), kgo.ConsumeExcludeTopics(exclude...))
	}
	return opts, nil
}

// startOffset is where a partition without a commit starts.
func startOffset(reset string) (kgo.Offset, error) {
	switch reset {
	case "", "earliest":
		return kgo.NewOffset().AtStart(), nil
	case "latest":
		return kgo.NewOffset().AtEnd(), nil
	case "none":
		return kgo.NewOffset().AtCommitted(), nil
	}
	at, err := time.Parse(time.RFC3339, reset)
	if err != nil {
		return kgo.Offset{}, &ConfigError{"reset", fmt.Sprintf("%q is unknown", reset), "use earliest, latest, none or a time such as 2026-01-31T00:00:00Z"}
	}
	// Kafka takes -1 and its like for the end of the log.
	return kgo.NewOffset().AfterMilli(max(at.UnixMilli(), 0)), nil
}

// tooOld says whether a broker is older than Kafka 4.3, the first whose consumer
// protocol (KIP-848) never fails a commit in normal operation. Brokers do not
// tell their version; 4.3 is the one that brought version 5 of DescribeLogDirs.
// A broker that does not know that request at all is not refused.
func tooOld(v kadm.BrokerApiVersions) bool {
	highest, ok := v.KeyMaxVersion(int16(kmsg.DescribeLogDirs))
	return v.Err == nil && ok && highest < 5
}

// checkBrokers ends Run where group_protocol: consumer meets a broker that is
// too old for it. It asks until one answers.
func (c *Consumer) checkBrokers(ctx context.Context) {
	for {
		versions, err := c.adm.ApiVersions(ctx)
		if err == nil {
			for _, v := range versions.Sorted() {
				if tooOld(v) {
					c.fail(&ConfigError{"group_protocol", fmt.Sprintf("consumer needs Kafka 4.3, broker %d is older", v.NodeID), "use classic"})
				}
			}
			return
		}
		t := time.NewTimer(time.Second)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return
		}
	}
}

// clientLog passes the client's warnings and errors on, each text once a
// minute: it repeats them for as long as a broker is away.
type clientLog struct {
	log zerolog.Logger

	mu   sync.Mutex
	said map[string]time.Time
}

// Level implements kgo.Logger.
func (l *clientLog) Level() kgo.LogLevel {
	if l.log.GetLevel() <= zerolog.DebugLevel {
		return kgo.LogLevelInfo
	}
	return kgo.LogLevelWarn
}

// Log implements kgo.Logger.
func (l *clientLog) Log(level kgo.LogLevel, msg string, keyvals ...any) {
	if level > kgo.LogLevelWarn {
		l.log.Debug().Fields(keyvals).Msg("kafka client: " + msg)
		return
	}
	key := msg
	for i := 0; i+1 < len(keyvals); i += 2 {
		if keyvals[i] == "err" {
			key += fmt.Sprint(keyvals[i+1])
		}
	}
	now := time.Now()
	l.mu.Lock()
	if l.said == nil || len(l.said) > 256 {
		l.said = make(map[string]time.Time)
	}
	again := now.Sub(l.said[key]) < time.Minute
	if !again {
		l.said[key] = now
	}
	l.mu.Unlock()
	if !again {
		l.log.Warn().Fields(keyvals).Msg("kafka client: " + msg)
	}
}
