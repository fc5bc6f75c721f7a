// Package document turns a Kafka record into an Elasticsearch action: which
// index, which id, which operation and version, and the bytes of the document.
//
// A value that is JSON passes byte for byte; it is never decoded and encoded
// again. By default the package looks at its framing alone (one line, first
// and last byte) and lets the server judge the rest.
//
// What the package decides depends on the record, the configuration and the
// recorded generation alone, so that it is the same on every replay. The one
// exception is time_window, which compares the record's time with the clock.
//
// Of a stream that is routed by customer (see Mapper.Use) the routing table in
// force decides the index, and a record under dual write becomes two actions.
//
// It talks to no server and keeps no record.
package document

import "github.com/sluicehq/sluice/indexer/bulk"

// Verdict is what becomes of a record.
type Verdict uint8

// The verdicts.
const (
	// Send: Result.Action is to be written.
	Send Verdict = iota + 1
	// Ignore: a configured rule passes over the record. It is handled.
	Ignore
	// Reject: the record can never be written; what follows is the Rules'
	// OnRejected. Result.Type and Result.Reason say why.
	Reject
	// DeadLetter: the record goes to the dead letters whatever OnRejected says.
	DeadLetter
	// Halt: the source partition stops at this record, whatever OnRejected
	// says.
	Halt
)

// Result is what Map makes of one record. It owns the memory that its slices
// stand in: reuse one per goroutine, and be done with a result before the next
// Map. The zero value is ready for use.
type Result struct {
	Verdict Verdict
	// Action is the operation to send. Its slices are the record's or the
	// Result's own.
	Action bulk.Action
	// Ordered says that the id may come again: see indexer.Action.
	Ordered bool
	// Changed says that Action.Body is not the record's value, so that a dead
	// letter must keep the value as well.
	Changed bool
	// Tombstone says that Action writes a deletion as a document (`deletes:
	// tombstone`): indexed by the server, deleted to the reader.
	Tombstone bool
	// Customer is the record's customer; empty: it has none, or none is
	// configured.
	Customer []byte
	// Side is the side of a routed stream that Action is for; SideNone where the
	// stream is not routed.
	Side Side
	// Twin is the second action of a record under dual write: the same
	// operation on the new side's index, while Action is the legacy side's. Its
	// Op is 0 where the record has one action. The record is handled when both
	// are; they may be sent in any order.
	Twin bulk.Action
	// TwinTombstone is Tombstone for Twin: in write mode W1 the new side's
	// deletes are documents while the legacy side's are not.
	TwinTombstone bool
	// Type and Reason say why a record is not sent: a stable word in snake
	// case, and a sentence that never quotes the record.
	Type, Reason string

	scratch []byte            // what is built for this record
	name    []byte            // the index name under construction
	names   map[string]string // index names that were made before
	check   checker
	seen    *seen // customers of recent ids; nil: the stream is not routed
}

// maxScratch is how much memory a Result keeps from one record to the next.
const maxScratch = 1 << 20

// begin forgets the last record.
func (out *Result) begin() {
	if cap(out.scratch) > maxScratch {
		out.scratch = nil
	}
	out.scratch = out.scratch[:0]
	out.Verdict = 0
	out.Action = bulk.Action{}
	out.Ordered, out.Changed, out.Tombstone = false, false, false
	out.Customer = nil
	out.Side = SideNone
	out.Twin, out.TwinTombstone = bulk.Action{}, false
	out.Type, out.Reason = "", ""
}

func (out *Result) end(v Verdict, p *problem) {
	out.Verdict = v
	out.Type, out.Reason = p.typ, p.reason
}

// The types of records that are not sent. They are part of the interface:
// they stand in dead letters and in metrics.
const (
	TypeNullValue     = "null_value"          // on_null: fail, dead_letter or ignore
	TypeKeylessNull   = "keyless_null"        // a null value without an id deletes nothing
	TypeEmptyValue    = "empty_value"         // no bytes, or white space only, where JSON is expected
	TypeNotObject     = "not_an_object"       // JSON, or something else, that does not begin like an object
	TypeInvalidJSON   = "invalid_json"        // cut short, trailing text, or refused by a full check
	TypeNotUTF8       = "not_utf8"            // a value that is not UTF-8
	TypeTooDeep       = "too_deep"            // nested deeper than max_depth
	TypeFieldName     = "bad_field_name"      // a field name that the server refuses
	TypeMetadataField = "metadata_field"      // _id and the like inside the document
	TypeNoID          = "no_id"               // the id's key, header or field is absent or empty
	TypeIDNotUTF8     = "id_not_utf8"         // the id is not UTF-8
	TypeIDTooLong     = "id_too_long"         // more than 512 bytes, under long_ids: reject
	TypeNoIndex       = "no_index"            // a header or field of the index name is absent or empty
	TypeIndexTooLong  = "index_name_too_long" // more than 255 bytes
	TypeTimeWindow    = "outside_time_window" // outside time_window
	TypeNoRouting     = "no_routing"          // the routing's key, header or field is absent, empty or not UTF-8
	TypeNoCustomer    = "no_customer"         // no customer, where one is needed
	TypeBadCustomer   = "bad_customer"        // of a routed stream: not UTF-8, or more than partition.MaxCustomer bytes
	TypeNoTable       = "no_routing_table"    // the stream is routed and no table was read yet
	TypeBadVersion    = "bad_version"         // no integer from 0 to 2^63-1 where the version comes from
	TypeSequenceRange = "sequence_range"      // generation or offset outside what a sequence holds
)

// problem is a type and a reason.
type problem struct{ typ, reason string }

var (
	problemNullValue     = &problem{TypeNullValue, "the record has no value"}
	problemKeylessNull   = &problem{TypeKeylessNull, "the record has neither a value nor an id to delete"}
	problemEmptyValue    = &problem{TypeEmptyValue, "the value is empty or white space"}
	problemNotObject     = &problem{TypeNotObject, "the value is not a JSON object: it does not begin with {"}
	problemNotClosed     = &problem{TypeInvalidJSON, "the value does not end with }"}
	problemNotJSON       = &problem{TypeInvalidJSON, "the value is not JSON"}
	problemNotUTF8       = &problem{TypeNotUTF8, "the value is not UTF-8"}
	problemTooDeep       = &problem{TypeTooDeep, "the value is nested too deep"}
	problemFieldName     = &problem{TypeFieldName, "the name of a field at the top is empty or blank, or is so between dots"}
	problemMetadata      = &problem{TypeMetadataField, "the document holds a metadata field such as _id"}
	problemNoID          = &problem{TypeNoID, "what the id is made from is absent or empty"}
	problemIDNotUTF8     = &problem{TypeIDNotUTF8, "the id is not UTF-8"}
	problemIDTooLong     = &problem{TypeIDTooLong, "the id has more than 512 bytes"}
	problemNoIndex       = &problem{TypeNoIndex, "what the index name is made from is absent or empty"}
	problemNameTooLong   = &problem{TypeIndexTooLong, "the index name would have more than 255 bytes"}
	problemTimeWindow    = &problem{TypeTimeWindow, "the record's time is outside time_window"}
	problemNoRouting     = &problem{TypeNoRouting, "what the routing is made from is absent, empty or not UTF-8"}
	problemNoCustomer    = &problem{TypeNoCustomer, "the record has no customer"}
	problemBadCustomer   = &problem{TypeBadCustomer, "the customer is not UTF-8, or has more than 256 bytes"}
	problemNoTable       = &problem{TypeNoTable, "the stream is routed by customer and its routing table was not read yet"}
	problemBadVersion    = &problem{TypeBadVersion, "what the version is taken from is no integer from 0 to 9223372036854775807"}
	problemSequenceRange = &problem{TypeSequenceRange, "generation or offset is outside what a sequence can hold"}
)
