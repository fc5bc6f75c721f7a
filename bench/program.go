package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"text/template"
)

// A place is what a program is put between, and what it may use.
type place struct {
	Brokers []string
	Sink    string // base URL
	Index   string // with several targets a prefix
	Group   string // a new one for every run
	Dir     string // for files of one process
	N       int    // the how-manieth process of the run
}

// SinkHost and SinkPort are for programs that want them apart.
func (p place) SinkHost() string {
	host, _, _ := net.SplitHostPort(strings.TrimPrefix(p.Sink, "http://"))
	return host
}

// SinkPort is the sink's port.
func (p place) SinkPort() string {
	_, port, _ := net.SplitHostPort(strings.TrimPrefix(p.Sink, "http://"))
	return port
}

// Broker is one of the brokers.
func (p place) Broker() string { return p.Brokers[0] }

// A program is something to compare.
type program struct {
	name string
	// faithful: it promises to hand over every document byte for byte, so a run
	// where it did not is void.
	faithful bool
	// command returns the command line of one of its processes.
	command func(p place, s scenario) ([]string, error)
	// prepare, if any, returns what has to run to its end before them.
	prepare func(p place, s scenario) ([]string, error)
}

// floorProgram is the yardstick.
func floorProgram(self string) program {
	return program{name: "floor", faithful: true, command: func(p place, s scenario) ([]string, error) {
		args := []string{
			self, "floor", "-ids", "-brokers", strings.Join(p.Brokers, ","), "-sink", p.Sink, "-index", p.Index, "-group", p.Group,
			"-gzip", strconv.Itoa(s.Gzip), "-workers", strconv.Itoa(s.floorWorkers()), fmt.Sprintf("-targets=%t", s.Targets > 1),
		}
		if s.Processes == 1 {
			args = append(args, "-docs", strconv.FormatInt(s.Docs, 10))
		}
		return args, nil
	}}
}

// sluiceProgram is Sluice with its defaults, but for the compression of bulk
// requests and what the scenario is about; more is put at the configuration's end.
func sluiceProgram(binary, name, more string) program {
	sluice := func(arguments ...string) func(p place, s scenario) ([]string, error) {
		return func(p place, s scenario) ([]string, error) {
			file, err := p.write("sluice.yaml", sluiceConfig+more, s)
			return append(append([]string{binary}, arguments...), "-c", file), err
		}
	}
	return program{name: name, faithful: true, command: sluice("run"), prepare: func(p place, s scenario) ([]string, error) {
		if s.Routed == 0 {
			return nil, nil
		}
		return sluice("routes", "init", "--partitions", strconv.Itoa(s.Routed))(p, s)
	}}
}

const sluiceConfig = `kafka:
  brokers: [{{range .Brokers}}"{{.}}", {{end}}]
  topics: [bench]
  group_id: {{.Group}}
elasticsearch: {addresses: ["{{.Sink}}"], compression_level: {{.Gzip}}}
documents:
  index: "{{.Index}}{{if gt .Targets 1}}-${header:target}{{end}}"
{{- if .Strict}}
  validate: strict
{{- end}}
{{- if .Routed}}
  customer: "{{.Customer}}"
  on_null: fail
routing: {stream: {{.Group}}}
{{- end}}
admin: {address: "127.0.0.1:0"}
log: {level: warn}
`

// rsyslogProgram is rsyslog with imkafka and omelasticsearch. It sends neither
// ids nor versions: its documents would be twice there after a crash.
func rsyslogProgram(binary string) program {
	return program{name: "rsyslog", command: func(p place, s scenario) ([]string, error) {
		file, err := p.write("rsyslog.conf", rsyslogConfig, s)
		return []string{binary, "-n", "-f", file, "-i", filepath.Join(p.Dir, "rsyslog.pid")}, err
	}}
}

// rsyslogConfig: one template without a copy, a queue that lets two workers
// take 4,000 messages at once, and requests of 5 MB. Batches are the action's
// limit: it has no time to wait for more.
const rsyslogConfig = `global(workDirectory="{{.Dir}}" maxMessageSize="{{.MaxMessage}}" parser.escapeControlCharactersOnReceive="off")
module(load="imkafka")
module(load="omelasticsearch")
template(name="raw" type="list") { property(name="rawmsg") }
input(type="imkafka" topic="bench" broker=[{{range $i, $b := .Brokers}}{{if $i}}, {{end}}"{{$b}}"{{end}}] consumergroup="{{.Group}}" ruleset="es" parseHostname="off"
  confParam=["auto.offset.reset=earliest", "fetch.message.max.bytes=4194304", "queued.max.messages.kbytes=65536"])
ruleset(name="es" queue.type="LinkedList" queue.size="100000" queue.dequeueBatchSize="4000" queue.workerThreads="2"
  queue.workerThreadMinimumMessages="4000" queue.minDequeueBatchSize="4000" queue.minDequeueBatchSize.timeout="1000") {
  action(type="omelasticsearch" server="{{.SinkHost}}" serverport="{{.SinkPort}}" template="raw" searchIndex="{{.Index}}" searchType=""
    bulkmode="on" maxbytes="5m" compress="{{if .Gzip}}on{{else}}off{{end}}" compress.level="{{if .Gzip}}{{.Gzip}}{{else}}-1{{end}}" action.resumeRetryCount="-1")
}
`

// otelcolProgram is the collector of peers/otelcol: the Kafka receiver, and an
// exporter built of the collector's own queue and of the bulk indexer that the
// Elasticsearch exporter uses. It sends neither ids nor versions.
func otelcolProgram(binary, name, encoding, mode string, wait bool) program {
	return program{name: name, command: func(p place, s scenario) ([]string, error) {
		receiver := ""
		if wait {
			receiver = otelcolWait
		}
		text := strings.NewReplacer("@ENCODING@", encoding, "@MODE@", mode, "@WAIT@", strconv.FormatBool(wait), "@RECEIVER@", receiver).Replace(otelcolConfig)
		file, err := p.write("otelcol.yaml", text, s)
		return []string{binary, "--config", file}, err
	}}
}

// otelcolWait makes the receiver mark a record when it was written. By default
// it does so as soon as the record is in the exporter's queue, and a crash
// loses what is there. The receiver then needs many records on their way, or
// each batch would wait for its time-out.
const otelcolWait = `
    message_marking: {after: true}
    error_backoff: {enabled: true, max_elapsed_time: 0s}
    partition_processing:
      independent: true
      max_prefetch: {batches: 2}
      max_in_flight: {records: 2000, bytes: 8388608, window: cross_fetch}`

const otelcolConfig = `receivers:
  kafka:
    brokers: [{{range $i, $b := .Brokers}}{{if $i}}, {{end}}"{{$b}}"{{end}}]
    group_id: {{.Group}}
    initial_offset: earliest
    logs: {topics: [bench], encoding: @ENCODING@}@RECEIVER@
exporters:
  esbulk:
    endpoint: {{.Sink}}
    index: {{.Index}}
    gzip: {{.Gzip}}
    mode: @MODE@
    sending_queue:
      enabled: true
      wait_for_result: @WAIT@
      block_on_overflow: true
      sizer: requests
      queue_size: 50000
      num_consumers: 10
      batch: {flush_timeout: 200ms, min_size: 4000000, max_size: 5000000, sizer: bytes}
service:
  telemetry: {metrics: {level: none}, logs: {level: warn}}
  pipelines:
    logs: {receivers: [kafka], exporters: [esbulk]}
`

// write fills in a configuration and returns the path of the file.
func (p place) write(name, text string, s scenario) (string, error) {
	filled := new(bytes.Buffer)
	err := template.Must(template.New(name).Parse(text)).Execute(filled, struct {
		place
		scenario
		MaxMessage int
	}{p, s, max(64<<10, 2*s.DocBytes)})
	if err != nil {
		return "", err
	}
	file := filepath.Join(p.Dir, name)
	return file, os.WriteFile(file, filled.Bytes(), 0o600)
}

// commands makes the processes of a run, whose output goes to files in dir.
func (prog program) commands(ctx context.Context, p place, s scenario, dir string) ([]*exec.Cmd, error) {
	var commands []*exec.Cmd
	for n := range s.Processes {
		p.N, p.Dir = n, filepath.Join(dir, fmt.Sprintf("%s-%d", p.Group, n))
		if err := os.MkdirAll(p.Dir, 0o700); err != nil {
			return nil, err
		}
		if prog.prepare != nil && n == 0 {
			line, err := prog.prepare(p, s)
			if err != nil {
				return nil, fmt.Errorf("configuring %s: %w", prog.name, err)
			}
			if line != nil {
				if output, err := exec.CommandContext(ctx, line[0], line[1:]...).CombinedOutput(); err != nil {
					return nil, fmt.Errorf("preparing %s: %w: %s", prog.name, err, output)
				}
			}
		}
		line, err := prog.command(p, s)
		if err != nil {
			return nil, fmt.Errorf("configuring %s: %w", prog.name, err)
		}
		output, err := os.Create(filepath.Join(p.Dir, "output"))
		if err != nil {
			return nil, err
		}
		command := exec.CommandContext(ctx, line[0], line[1:]...)
		command.Stdout, command.Stderr = output, output
		commands = append(commands, command)
	}
	return commands, nil
}
