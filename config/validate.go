package config

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluicehq/sluice/credentials"
	"github.com/sluicehq/sluice/document"
	"github.com/sluicehq/sluice/partition"
)

// validator judges a decoded configuration. Each check is made once: what a
// room checks by itself is asked of the room, and only brought to its place.
type validator struct {
	*decoder
	refused map[string]bool // by refuseLater: nothing more needs saying
}

// validate adds what is wrong with d.cfg to d's errors, and fills in what
// follows from which keys were written.
func validate(d *decoder) {
	v := validator{d, map[string]bool{}}
	v.refuseLater()
	v.kafka()
	v.elasticsearch()
	v.documents()
	v.indexer()
	v.memory()
	v.rest()
	v.admin()
}

// written reports whether a key stands in a source.
func (v *validator) written(path string) bool {
	_, ok := v.places[path]
	return ok
}

// oneOf checks an enumeration.
func (v *validator) oneOf(path, value string, allowed ...string) {
	if !slices.Contains(allowed, value) && !v.refused[path] {
		v.fail(path, v.show(path, value)+" is not known here", "use "+choice(allowed))
	}
}

// choice writes a, b or c.
func choice(words []string) string {
	last := len(words) - 1
	if last == 0 {
		return words[0]
	}
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// above0 checks durations and sizes.
func (v *validator) above0(path string, n int64, example string) {
	if n <= 0 {
		v.fail(path, "must be above 0", "write a value such as "+example)
	}
}

// between checks a duration against its bounds, both allowed.
func (v *validator) between(path string, d, least, most time.Duration) {
	if d < least || d > most {
		v.fail(path, fmt.Sprintf("must be %s to %s", formatDuration(least), formatDuration(most)), "choose a value in between; the default is sane")
	}
}

// atLeast checks a count.
func (v *validator) atLeast(path string, n, least int) {
	if n < least {
		v.fail(path, fmt.Sprintf("must be at least %d", least), fmt.Sprintf("write %d or more", least))
	}
}

// ordered checks that low <= high.
func (v *validator) ordered(lowPath string, low int64, highPath string, high int64) {
	if low > high {
		v.fail(lowPath, "is above "+highPath, "lower it, or raise "+highPath)
	}
}

// kafkaName is what Kafka takes as a topic or a static member's name.
var kafkaName = regexp.MustCompile(`^[a-zA-Z0-9._-]{1,249}$`)

func (v *validator) kafka() {
	k := &v.cfg.Kafka
	if len(k.Brokers) == 0 {
		v.fail("kafka.brokers", "no broker is named", `write at least one, such as ["localhost:9092"]`)
	}
	for i, broker := range k.Brokers {
		path := fmt.Sprintf("kafka.brokers[%d]", i)
		if !isBroker(broker) {
			shown := v.show(path, broker)
			if strings.Contains(broker, "@") { // a password may stand before it
				shown = "the value (not shown)"
			}
			v.fail(path, shown+" is not host:port", "write one broker for each element, without a scheme, such as kafka-1:9092")
		}
	}
	if k.GroupID == "" {
		v.fail("kafka.group_id", "is empty", "name the consumer group, such as sluice")
	}
	v.topics("kafka.topics", k.Topics)
	if _, err := time.Parse(time.RFC3339, k.Reset); err != nil {
		v.oneOf("kafka.reset", k.Reset, "earliest", "latest", "none", "an RFC 3339 time such as 2026-01-31T12:00:00Z")
	}
	v.oneOf("kafka.on_data_loss", k.OnDataLoss, "halt", "resume")
	v.oneOf("kafka.isolation_level", k.IsolationLevel, "read_committed", "read_uncommitted")
	v.oneOf("kafka.group_protocol", k.GroupProtocol, "classic", "consumer")
	if k.InstanceID != "" && !kafkaName.MatchString(k.InstanceID) {
		v.fail("kafka.instance_id", v.show("kafka.instance_id", k.InstanceID)+" is not a name that Kafka takes", "use letters, digits and . _ - only, 249 at most")
	}
	v.between("kafka.session_timeout", k.SessionTimeout, time.Second, 30*time.Minute)
	v.between("kafka.rebalance_timeout", k.RebalanceTimeout, time.Second, time.Hour)
	v.above0("kafka.drain_timeout", int64(k.DrainTimeout), "5s")
	if k.DrainTimeout >= k.RebalanceTimeout {
		v.fail("kafka.drain_timeout", "is not below kafka.rebalance_timeout: the group would go on without this member while it drains", "lower it, or raise kafka.rebalance_timeout")
	}
	v.above0("kafka.commit_interval", int64(k.CommitInterval), "1s")
	v.above0("kafka.fetch.min_bytes", int64(k.Fetch.MinBytes), "1")
	v.above0("kafka.fetch.max_wait", int64(k.Fetch.MaxWait), "500ms")
	if k.Fetch.MaxBytes > 0 {
		v.ordered("kafka.fetch.min_bytes", int64(k.Fetch.MinBytes), "kafka.fetch.max_bytes", int64(k.Fetch.MaxBytes))
	}
	if !k.TLS.Enabled && k.TLS.TLS != (credentials.TLS{}) {
		v.fail(v.firstWritten("kafka.tls", k.TLS.TLS), "has no effect: kafka.tls.enabled is false and the connection is not encrypted", "set kafka.tls.enabled: true, or remove it")
	}
	v.tls("kafka.tls", k.TLS.TLS)
	v.sasl()
}

func (v *validator) sasl() {
	s := &v.cfg.Kafka.SASL
	at := func(key string) string { return "kafka.sasl." + key }
	v.secret(at("password"), s.Password, at("password_file"), s.PasswordFile)
	v.secret("", "", at("token_file"), s.TokenFile)
	hasPassword := s.Password != "" || s.PasswordFile != ""
	switch s.Mechanism {
	case "":
		for _, key := range []string{"username", "password", "password_file", "token_file"} {
			if lookup(reflect.ValueOf(s).Elem(), key).String() != "" {
				v.fail(at(key), "has no effect without a mechanism", "set kafka.sasl.mechanism to PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER or AWS_MSK_IAM")
				break
			}
		}
	case "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512":
		if s.Username == "" {
			v.fail(at("mechanism"), s.Mechanism+" needs a user name", "set kafka.sasl.username")
		}
		if !hasPassword {
			v.fail(at("mechanism"), s.Mechanism+" needs a password", "set kafka.sasl.password_file, or password: ${env:NAME}")
		}
		if s.TokenFile != "" {
			v.fail(at("token_file"), "has no effect with "+s.Mechanism, "remove it, or use OAUTHBEARER")
		}
	case "OAUTHBEARER":
		if s.TokenFile == "" {
			v.fail(at("mechanism"), "OAUTHBEARER needs a token", "set kafka.sasl.token_file")
		}
		if s.Username != "" || hasPassword {
			v.fail(at("mechanism"), "OAUTHBEARER knows no user name and no password", "remove them, or use PLAIN or SCRAM-SHA-512")
		}
	case "AWS_MSK_IAM":
		if !v.cfg.Kafka.TLS.Enabled {
			v.fail(at("mechanism"), "AWS_MSK_IAM is taken over TLS only", "set kafka.tls.enabled: true")
		}
		if (s.Username != "") != hasPassword {
			v.fail(at("mechanism"), "half of an access key", "set kafka.sasl.username and password_file, or neither: AWS gives the process its credentials then")
		}
		if s.TokenFile != "" && s.Username == "" {
			v.fail(at("token_file"), "is the session token of an access key, and there is none", "set kafka.sasl.username and password_file, or remove it")
		}
	default:
		v.oneOf(at("mechanism"), s.Mechanism, "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "AWS_MSK_IAM")
	}
}

// streamName is what a routing table takes as its stream's name.
var streamName = regexp.MustCompile(`^[a-zA-Z0-9._-]{1,200}$`)

// isBroker reports whether s is a host with or without a port.
func isBroker(s string) bool {
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		host, port = s, "9092"
		if strings.Count(s, ":") > 1 { // an IPv6 address without a port
			return net.ParseIP(s) != nil
		}
	}
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && n > 0 && host != "" && !strings.ContainsAny(host, " ,/;@\t")
}

// topics checks a list of names and regular expressions to consume.
func (v *validator) topics(path string, topics []string) {
	if len(topics) == 0 {
		v.fail(path, "no topic is named", `write at least one, such as ["events"] or ["^logs-.*"]`)
	}
	dead := v.cfg.DeadLetter.Topic
	for i, topic := range topics {
		at := fmt.Sprintf("%s[%d]", path, i)
		switch {
		case strings.HasPrefix(topic, "^"):
			if _, err := regexp.Compile(topic); err != nil {
				v.fail(at, v.show(at, topic)+" is not a regular expression"+v.because(at, err), "see https://pkg.go.dev/regexp/syntax; a backslash in double quotes is written twice")
			}
		case dead != "" && topic == dead:
			v.fail(at, "is the dead-letter topic: its letters would be consumed again and again", "remove it; `sluice deadletter replay` reads the letters")
		case dead != "" && topic == dead+".parked":
			v.fail(at, "is the topic of parked records, which Sluice replays by itself", "remove it")
		case strings.HasPrefix(topic, "__"):
			v.fail(at, "is one of Kafka's own topics", "remove it")
		case strings.ContainsAny(topic, "*+?()[]|"):
			v.fail(at, v.show(at, topic)+" is not a topic's name", "put ^ in front to make it a regular expression, such as ^logs-.*")
		case !kafkaName.MatchString(topic) || topic == "." || topic == "..":
			v.fail(at, v.show(at, topic)+" is not a topic's name", "use letters, digits and . _ - only, 249 at most")
		}
	}
}

func (v *validator) elasticsearch() {
	e := &v.cfg.Elasticsearch
	at := func(key string) string { return "elasticsearch." + key }
	if e.CloudID != "" {
		if !v.written(at("addresses")) {
			e.Addresses = nil // the default is for who names neither
		} else if len(e.Addresses) > 0 {
			v.fail(at("cloud_id"), "stands beside elasticsearch.addresses", "keep one of the two")
		}
		if !isCloudID(e.CloudID) {
			// Not shown: it may be a key that was put into the wrong place.
			v.fail(at("cloud_id"), "the value (not shown) is not a cloud id", "copy it whole from the deployment's page: name:letters")
		}
	} else if len(e.Addresses) == 0 {
		v.fail(at("addresses"), "no address is named", `write at least one, such as ["http://localhost:9200"]`)
	}
	encrypted := e.CloudID != ""
	for i, address := range e.Addresses {
		encrypted = v.address(fmt.Sprintf("elasticsearch.addresses[%d]", i), address) || encrypted
	}
	if !encrypted && e.TLS != (credentials.TLS{}) {
		v.fail(v.firstWritten(at("tls"), e.TLS), "has no effect: no address begins with https:// and the connection is not encrypted", "write https:// in elasticsearch.addresses, or remove it")
	}
	v.tls(at("tls"), e.TLS)

	v.secret(at("password"), e.Password, at("password_file"), e.PasswordFile)
	v.secret(at("api_key"), e.APIKey, at("api_key_file"), e.APIKeyFile)
	hasPassword, hasKey := e.Password != "" || e.PasswordFile != "", e.APIKey != "" || e.APIKeyFile != ""
	passwordKey := at("password")
	if e.Password == "" {
		passwordKey = at("password_file")
	}
	switch {
	case hasKey && (e.Username != "" || hasPassword):
		key := at("username")
		if e.Username == "" {
			key = passwordKey
		}
		v.fail(key, "stands beside an API key", "keep one of the two ways to log in")
	case e.Username != "" && !hasPassword:
		v.fail(at("username"), "has no password", "set elasticsearch.password_file, or password: ${env:NAME}")
	case e.Username == "" && hasPassword:
		v.fail(passwordKey, "has no user name", "set elasticsearch.username")
	}
	if e.CompressionLevel < 0 || e.CompressionLevel > 9 {
		v.fail(at("compression_level"), "must be 0 (off) to 9", "1 costs least and gains most")
	}
	if e.RequestTimeout <= 0 || e.RequestTimeout >= time.Minute {
		v.fail(at("request_timeout"), "must be above 0 and below 60s: Elasticsearch forgets a deleted document's version after 60s, and an older write that came later would bring it back", "the default is 20s")
	}
}

// address checks one URL, without ever showing it: it may hold a password. It
// reports whether the connection is encrypted.
func (v *validator) address(path, address string) (encrypted bool) {
	const remedy = "write it like http://host:9200 or https://host:9200"
	u, err := url.Parse(address)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		v.fail(path, "is not an http or https address", remedy)
		return false
	case u.User != nil:
		v.fail(path, "holds a user name", "move it to elasticsearch.username and password_file, where it is not shown in logs")
	case u.Hostname() == "" || u.RawQuery != "" || u.Fragment != "":
		v.fail(path, "has no host, or parts after the path", remedy)
	}
	return u.Scheme == "https"
}

// isCloudID checks name:base64(host$elasticsearch[$kibana]).
func isCloudID(id string) bool {
	data, err := base64.StdEncoding.DecodeString(id[strings.LastIndex(id, ":")+1:])
	host, cluster, _ := strings.Cut(string(data), "$")
	return err == nil && host != "" && cluster != ""
}

// secret checks a text against its file: not both, and a file that can be
// read and holds something.
func (v *validator) secret(path string, value credentials.Secret, filePath, file string) {
	if value != "" && file != "" {
		v.fail(filePath, "stands beside "+path, "keep one of the two")
		return
	}
	if _, err := credentials.Open("", file); err != nil {
		v.files(func(string) string { return filePath }, err)
	}
}

// tls checks the files of a client's TLS section.
func (v *validator) tls(path string, t credentials.TLS) {
	if _, err := t.Config(); err != nil {
		v.files(func(key string) string { return path + "." + key }, err)
	}
}

// firstWritten returns the first key of a section that has a value.
func (v *validator) firstWritten(path string, section any) string {
	s := reflect.ValueOf(section)
	for _, f := range fields(s.Type()) {
		if !s.FieldByIndex(f.index).IsZero() {
			return path + "." + f.key
		}
	}
	return path
}

// files adds the errors of the credentials room; place turns its key into a
// path.
func (v *validator) files(place func(key string) string, err error) {
	for _, err := range unjoin(err) {
		e := (*credentials.Error)(nil)
		if !errors.As(err, &e) {
			e = &credentials.Error{Problem: err.Error()}
		}
		v.found(place(e.Key), e.Problem, e.Remedy)
	}
}

// found adds what a room found, which knows nothing of values that must not
// be shown.
func (v *validator) found(path, problem, remedy string) {
	for hidden, yes := range v.hidden {
		if !yes {
			continue
		}
		own := hidden == path || strings.HasPrefix(hidden, path+"[") || strings.HasPrefix(hidden, path+".")
		if own || v.quotes(problem+remedy, hidden) {
			problem, remedy = "does not fit; it is not shown, for it comes from a variable", "docs/configuration.md says what "+path+" takes"
			break
		}
	}
	v.fail(path, problem, remedy)
}

// quotes reports whether a text holds the value at a path.
func (v *validator) quotes(text, path string) bool {
	value := lookup(reflect.ValueOf(v.cfg).Elem(), path)
	if value.Kind() != reflect.String || value.Len() == 0 {
		return false
	}
	quoted := strconv.Quote(value.String())
	return strings.Contains(text, value.String()) || strings.Contains(text, quoted[1:len(quoted)-1])
}

// because returns what an error says, for the end of a sentence, unless it may
// quote a value that must not be shown.
func (v *validator) because(path string, err error) string {
	if v.hidden[path] {
		return ""
	}
	return ": " + err.Error()
}

// documents asks the room, whose errors name their key in full.
func (v *validator) documents() {
	c := v.cfg
	mapper, err := document.New(c.Documents, c.Overrides, c.Kafka.Topics, c.DeadLetter.Enabled())
	if err == nil && c.Routing.Stream != "" && !v.refused["routing.stream"] {
		err = mapper.CheckRouting()
	}
	for _, err := range unjoin(err) {
		e := (*document.ConfigError)(nil)
		if !errors.As(err, &e) {
			e = &document.ConfigError{Key: "documents", Problem: err.Error()}
		}
		if v.refused[e.Key] || strings.HasPrefix(e.Key, "kafka.") { // said already
			continue
		}
		v.found(e.Key, e.Problem, e.Remedy)
	}
	v.window("documents", &c.Documents)
	for i := range c.Overrides {
		v.window(fmt.Sprintf("overrides[%d].documents", i), &c.Overrides[i].Documents)
	}
}

// window refuses written zeros, which the room takes for the defaults.
func (v *validator) window(section string, c *document.Config) {
	check := func(key string, zero bool, example string) {
		if path := section + "." + key; zero && v.written(path) {
			v.fail(path, "must be above 0", "write a value such as "+example)
		}
	}
	check("time_window.past", c.TimeWindow.Past == 0, "365d")
	check("time_window.future", c.TimeWindow.Future == 0, "1d")
	check("time_window.new_indices_per_hour", c.TimeWindow.NewIndicesPerHour == 0, "50")
	check("max_depth", c.MaxDepth == 0, "200")
	check("tombstone_ttl", c.TombstoneTTL <= 0, "24h")
}

func (v *validator) indexer() {
	x := &v.cfg.Indexer
	v.above0("indexer.flush_bytes", int64(x.FlushBytes), "4MiB")
	v.atLeast("indexer.flush_documents", x.FlushDocuments, 1)
	v.above0("indexer.flush_interval", int64(x.FlushInterval), "1s")
	v.atLeast("indexer.requests.min", x.Requests.Min, 1)
	v.ordered("indexer.requests.min", int64(x.Requests.Min), "indexer.requests.max", int64(x.Requests.Max))
	s := x.Scaling
	v.atLeast("indexer.scaling.min", s.Min, 1)
	v.atLeast("indexer.scaling.max", s.Max, 0)
	if s.Max > 0 {
		v.ordered("indexer.scaling.min", int64(s.Min), "indexer.scaling.max", int64(s.Max))
	}
	if s.ActiveRatio <= 0 {
		v.fail("indexer.scaling.active_ratio", "must be above 0", "write a value such as 1: as many indexers as GOMAXPROCS")
	}
	v.atLeast("indexer.scaling.up_after", s.UpAfter, 1)
	v.atLeast("indexer.scaling.down_after", s.DownAfter, 1)
	v.above0("indexer.scaling.up_cooldown", int64(s.UpCooldown), "60s")
	v.above0("indexer.scaling.down_cooldown", int64(s.DownCooldown), "30s")
	v.above0("indexer.scaling.idle_interval", int64(s.IdleInterval), "30s")
	v.above0("indexer.retry.initial", int64(x.Retry.Initial), "100ms")
	v.ordered("indexer.retry.initial", int64(x.Retry.Initial), "indexer.retry.max", int64(x.Retry.Max))
	v.atLeast("indexer.retry.item_attempts", x.Retry.ItemAttempts, 1)
	v.oneOf("indexer.held", x.Held, "wait", "park")
	if x.Held == "park" && v.cfg.DeadLetter.Topic == "" {
		v.fail("indexer.held", "park needs a topic for the parked records", "set dead_letter.topic: they go to its name with .parked")
	}
}

func (v *validator) memory() {
	m := v.cfg.Memory
	if m.Limit > 0 {
		v.ordered("indexer.flush_bytes", int64(v.cfg.Indexer.FlushBytes), "memory.limit", int64(m.Limit))
	}
	if m.Limit > 0 && m.MaxRecord > 0 {
		v.ordered("memory.max_record", int64(m.MaxRecord), "memory.limit", int64(m.Limit))
	}
}

// rest checks the small sections.
func (v *validator) rest() {
	v.oneOf("procs.mode", v.cfg.Procs.Mode, "automaxprocs", "runtime")
	v.above0("procs.interval", int64(v.cfg.Procs.Interval), "30s")

	dl := v.cfg.DeadLetter
	// The topic of parked records is 7 letters longer and must fit, too.
	if dl.Topic != "" && (!kafkaName.MatchString(dl.Topic+".parked") || dl.Topic == "." || dl.Topic == "..") {
		v.fail("dead_letter.topic", v.show("dead_letter.topic", dl.Topic)+" is not a topic's name", "use letters, digits and . _ - only, 242 at most")
	}
	if dl.MaxShare <= 0 {
		v.fail("dead_letter.max_share", "must be above 0%: every rejection would hold its target", shareRemedy)
	}
	v.oneOf("dead_letter.oversize", dl.Oversize, "hold", "chunk")
	if dl.Index != "" {
		switch problem := partition.CheckIndex(dl.Index); {
		case problem != "":
			v.fail("dead_letter.index", problem, "write a name such as dead-letters")
		case dl.Topic != "":
			v.fail("dead_letter.index", "stands beside dead_letter.topic", "keep one of the two")
		case dl.Index == v.cfg.Routing.ControlIndex:
			v.fail("dead_letter.index", "is the control index", "name an index of its own")
		case v.isTarget(dl.Index):
			v.fail("dead_letter.index", "is an index that documents go to", "name an index of its own")
		}
		if dl.Oversize == "chunk" {
			v.fail("dead_letter.oversize", "chunk cuts letters for a topic, and they go to an index", "use hold; an index takes letters as large as the servers' http.max_content_length")
		}
	}

	r := v.cfg.Routing
	if r.Stream != "" && !streamName.MatchString(r.Stream) {
		v.fail("routing.stream", v.show("routing.stream", r.Stream)+" is not a stream's name", "use letters, digits and . _ - only, 200 at most")
	}
	if problem := partition.CheckIndex(r.ControlIndex); problem != "" {
		v.fail("routing.control_index", problem, "write a name such as .sluice-control")
	}
	v.above0("routing.refresh_interval", int64(r.RefreshInterval), "1s")
	v.ordered("routing.refresh_interval", int64(r.RefreshInterval), "routing.max_staleness", int64(r.MaxStaleness))

	v.above0("shutdown_timeout", int64(v.cfg.ShutdownTimeout), "30s")
	v.oneOf("log.level", v.cfg.Log.Level, "trace", "debug", "info", "warn", "error")
	v.oneOf("log.format", v.cfg.Log.Format, "auto", "text", "json")
}

// isTarget reports whether documents go to an index of this name, as far as
// the configuration tells.
func (v *validator) isTarget(index string) bool {
	return index == v.cfg.Documents.Index ||
		slices.ContainsFunc(v.cfg.Overrides, func(o document.Override) bool { return index == o.Documents.Index })
}

// admin asks the room, whose errors begin with the key and end with the
// remedy.
func (v *validator) admin() {
	for _, err := range unjoin(v.cfg.Admin.Check()) {
		key, problem := "admin", err.Error()
		if m := adminKey.FindStringSubmatch(problem); m != nil {
			key, problem = m[1], problem[len(m[0]):]
		}
		v.found(key, problem, "")
	}
}

var adminKey = regexp.MustCompile(`^(admin[a-z_.]*):? `)

// unjoin returns the errors that errors.Join joined, or the only one, or none.
func unjoin(err error) []error {
	if err == nil {
		return nil
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	return []error{err}
}

// reason returns what an error says without the path of the file, which
// stands beside it already.
func reason(err error) string {
	if path := (*fs.PathError)(nil); errors.As(err, &path) {
		err = path.Err
	}
	return err.Error()
}

// atoi reads an index that this package wrote.
func atoi(digits string) int {
	n, err := strconv.Atoi(digits)
	if err != nil {
		panic("config: " + err.Error())
	}
	return n
}
