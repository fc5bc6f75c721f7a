package deadletter

import (
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func TestShorten(t *testing.T) {
	for reason, want := range map[string]string{
		`failed to parse field [age] of type [long] in document with id '7'. Preview of field's value: 's3cret'`: `failed to parse field [age] of type [long] in document with id '…`,
		`failed to parse field [age] of type [long]. Preview of field's value: {a=s3cret}`:                       `failed to parse field [age] of type [long]. Preview of field's value: {…`,
		`failed to parse date field [s3cret] with format [strict_date_optional_time]`:                            `failed to parse date field […`,
		`[1:6] mapping set to strict, dynamic introduction of [b] within [_doc] is not allowed`:                  `[1:6] mapping set to strict, dynamic introduction of [b] within [_doc] is not allowed`,
		`object mapping for [a] tried to parse field [a] as object, but found a concrete value`:                  `object mapping for [a] tried to parse field [a] as object, but found a concrete value`,
		`mapper [a] cannot be changed from type [long] to [text]`:                                                `mapper [a] cannot be changed from type [long] to [text]`,
		`failed to parse field [` + strings.Repeat("n", 70) + `]`:                                                `failed to parse field […`,
		`Limit of total fields [1000] has been exceeded`:                                                         `Limit of total fields [1000] has been exceeded`,
		`For input string: "s3cr`:                                   `For input string: "…`,
		`Numeric value (1234567890123) out of range of long`:        `Numeric value (…`,
		`Failed to parse value [s3cret] as only [true] are allowed`: `Failed to parse value […`,
		"two\nlines\tand   spaces\x00":                              `two lines and spaces`,
		"":                                                          ``,
	} {
		if got := Shorten(reason); got != want {
			t.Errorf("%s\n got %s\nwant %s", reason, got, want)
		}
	}
}

// Whatever a value holds, quotes and brackets included, nothing of it is left.
func TestShortenHidesValues(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		template := rapid.SampledFrom([]string{
			"failed to parse field [f] of type [long] in document with id '%'. Preview of field's value: '%'",
			"failed to parse field [f] of type [date]: Preview of field's value: {a=%}",
			"failed to parse date field [%] with format [yyyy]",
			`For input string: "%"`,
			`For input string: "%`,
			"Unrecognized token '%': was expecting JSON",
			"'%' is not an IP string literal.",
			"Failed to parse value [%] as only [true] or [false] are allowed.",
			"unsupported symbol [%] in geohash [%]",
			"Numeric value (%) out of range of long (-1 - 2)",
			"object {%} found",
		}).Draw(t, "template")
		// Marks between arbitrary punctuation: a mark that is seen is a leak.
		value := strings.Join(rapid.SliceOfN(rapid.StringOfN(rapid.RuneFrom([]rune(`'"[](){}: x`)), 0, 4, -1), 2, 5).Draw(t, "value"), "S3CRET")
		if got := Shorten(strings.ReplaceAll(template, "%", value)); strings.Contains(got, "S3CRET") {
			t.Fatalf("%s", got)
		}
	})
}

func TestShortenBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		got := Shorten(rapid.String().Draw(t, "a") + strings.Repeat(rapid.StringN(1, 5, 20).Draw(t, "b"), 100))
		if len(got) > maxReason || !utf8.ValidString(got) || strings.ContainsAny(got, "\n\r\x00") {
			t.Fatalf("%d bytes: %q", len(got), got)
		}
	})
}
