package config

import (
	"fmt"
	"regexp"
	"strings"
)

var variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// A variableError says why a variable cannot be substituted. It never holds
// the variable's value.
type variableError struct{ problem, remedy string }

// substitute replaces the variables in text by what env knows of them:
//
//	${env:NAME}            its value; an error where it is not set
//	${env:NAME:-default}   default where it is not set or empty
//	${env:NAME:?message}   an error with message where it is not set or empty
//
// $${ stands for ${, and any other ${...} stays as it is: templates have
// variables of their own. Values are not looked at again. used reports whether
// there was any variable in text.
func substitute(text string, env func(string) (string, bool)) (out string, used bool, failed *variableError) {
	var b strings.Builder
	for {
		before, after, found := strings.Cut(text, "${")
		if !found {
			b.WriteString(text)
			return b.String(), used, nil
		}
		if escaped, ok := strings.CutSuffix(before, "$"); ok {
			b.WriteString(escaped + "${")
			text = after
			continue
		}
		b.WriteString(before)
		expr, ok := strings.CutPrefix(after, "env:")
		if !ok {
			b.WriteString("${")
			text = after
			continue
		}
		expr, rest, closed := strings.Cut(expr, "}")
		if !closed {
			return "", true, &variableError{"${env: is not closed", "write ${env:NAME}, or $${ for a plain ${"}
		}
		value, failed := variable(expr, env)
		if failed != nil {
			return "", true, failed
		}
		b.WriteString(value)
		text, used = rest, true
	}
}

// variable returns the value of NAME, NAME:-default or NAME:?message.
func variable(expr string, env func(string) (string, bool)) (string, *variableError) {
	name, option, _ := strings.Cut(expr, ":")
	if !variableName.MatchString(name) || option == "" && name != expr || option != "" && option[0] != '-' && option[0] != '?' {
		return "", &variableError{"a variable that cannot be read", "write ${env:NAME}, ${env:NAME:-default} or ${env:NAME:?message}"}
	}
	value, set := env(name)
	switch {
	case option == "" && !set:
		return "", &variableError{fmt.Sprintf("the environment variable %s is not set", name), fmt.Sprintf("set it, or give a default: ${env:%s:-default}", name)}
	case option == "" || value != "":
		return value, nil
	case option[0] == '?':
		return "", &variableError{fmt.Sprintf("the environment variable %s is not set or empty: %s", name, option[1:]), "set it"}
	default:
		return option[1:], nil
	}
}
