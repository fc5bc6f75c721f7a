package config

import (
	"bytes"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/sluicehq/sluice/credentials"
	"github.com/sluicehq/sluice/memory"
)

// Redacted returns cfg as YAML that Load would read, every key with its value
// in force. Secrets are shown as [redacted].
func Redacted(cfg *Config) []byte {
	var out bytes.Buffer
	e := yaml.NewEncoder(&out)
	e.SetIndent(2)
	// Neither fails: the nodes are our own, the buffer takes everything.
	_ = e.Encode(encode("", reflect.ValueOf(*cfg)))
	_ = e.Close()
	return out.Bytes()
}

// encode is the reverse of decoder.value.
func encode(path string, v reflect.Value) *yaml.Node {
	text := func(s string) *yaml.Node {
		n := &yaml.Node{}
		n.SetString(escape(s))
		return n
	}
	plain := func(s string) *yaml.Node { return &yaml.Node{Kind: yaml.ScalarNode, Value: s} }
	switch v.Type() {
	case durationType:
		return plain(formatDuration(time.Duration(v.Int())))
	case sizeType:
		if v.Int() == 0 && autoSizes[path] {
			return plain("auto")
		}
		return plain(formatSize(memory.Size(v.Int())))
	case shareType:
		return plain(formatShare(memory.Share(v.Float())))
	case secretType:
		return text(credentials.Secret(v.String()).String())
	}
	switch v.Kind() {
	case reflect.Struct:
		n := &yaml.Node{Kind: yaml.MappingNode}
		for _, f := range fields(v.Type()) {
			n.Content = append(n.Content, plain(f.key), encode(join(path, f.key), v.FieldByIndex(f.index)))
		}
		return n
	case reflect.Slice:
		n := &yaml.Node{Kind: yaml.SequenceNode}
		if v.Type().Elem().Kind() != reflect.Struct {
			n.Style = yaml.FlowStyle
		}
		for i := range v.Len() {
			n.Content = append(n.Content, encode(path+"[]", v.Index(i)))
		}
		return n
	case reflect.String:
		return text(v.String())
	case reflect.Bool:
		return plain(strconv.FormatBool(v.Bool()))
	case reflect.Int:
		return plain(strconv.FormatInt(v.Int(), 10))
	case reflect.Float64:
		return plain(strconv.FormatFloat(v.Float(), 'g', -1, 64))
	default:
		panic(fmt.Sprintf("config: no encoder for %v at %s", v.Type(), path))
	}
}

// escape is the reverse of substitute.
func escape(text string) string {
	var b strings.Builder
	for {
		before, after, found := strings.Cut(text, "${")
		b.WriteString(before)
		if !found {
			return b.String()
		}
		if strings.HasSuffix(before, "$") || strings.HasPrefix(after, "env:") {
			b.WriteByte('$')
		}
		b.WriteString("${")
		text = after
	}
}
