package indexer

import (
	"errors"
	"fmt"
	"strings"

	"github.com/sluicehq/sluice/indexer/bulk"
)

// This file decides what an answer means (DESIGN 6.1). The two functions are
// pure and total: every answer has a verdict, and what is done about it is the
// callers' affair. docs/verdicts.md says the same to users.
//
// Two rules stand behind the table. In doubt nothing is dropped: an answer that
// proves nothing is sent again, a cause outside the record makes the target
// wait. And nothing is tried for ever in silence: what is refused for reasons
// unknown is rejected after a number of tries or holds its target, with an
// alarm.

// requestKind is what to do with a whole bulk request.
type requestKind uint8

const (
	// requestAnswered: read the answer, each item has a verdict of its own. An
	// answer that bulk.Decode finds unusable is requestUnknown after all.
	requestAnswered requestKind = iota + 1
	// requestUnknown: nobody knows what was done. Send the same actions again,
	// for ever; a request that is never answered while others are is split.
	requestUnknown
	// requestThrottled: nothing was done, the server has too much to do. Send
	// it again later, and send less.
	requestThrottled
	// requestSplit: one of the actions, or the number of them, is refused, and
	// nothing was done. Send halves. An action that is refused alone is
	// rejected where final is set (too large); else it is the record's fault
	// only if other actions are accepted in between.
	requestSplit
	// requestHoldAll: it is never the records' fault. Stop writing, alarm, try
	// one request from time to time.
	requestHoldAll
	// requestCredentials is requestHoldAll, and the credentials are read anew.
	requestCredentials
)

// requestVerdict is what became of a whole request.
type requestVerdict struct {
	kind      requestKind
	final     bool   // requestSplit: a lone action is rejected at once
	status    int    // HTTP status; 0: no answer
	errorType string // of the answer, such as illegal_argument_exception, else of the making http_404
	reason    string // the server's; may quote document content
}

// nobody says that no server answered: nothing did, or a gateway that found
// nobody behind it. Else an outage would look like the fault of records.
func (v requestVerdict) nobody() bool {
	return v.status == 0 || v.kind == requestUnknown && 502 <= v.status && v.status <= 504
}

// judgeRequest judges the answer to a bulk request: the error of the
// transport (also: the answer was cut), or the status and the body.
func judgeRequest(err error, status int, body []byte) requestVerdict {
	if errors.Is(err, errAnswerTooLarge) { // somebody answered
		return requestVerdict{kind: requestUnknown, status: status, errorType: "endless_answer", reason: err.Error()}
	}
	if err != nil {
		return requestVerdict{kind: requestUnknown, errorType: "no_answer", reason: err.Error()}
	}
	if status == 200 {
		return requestVerdict{kind: requestAnswered, status: status}
	}
	errorType, reason := bulk.DecodeError(body)
	v := requestVerdict{status: status, errorType: errorType.String(), reason: reason.String()}
	if v.errorType == "" {
		v.errorType = fmt.Sprintf("http_%d", status)
	}
	v.kind = requestKindOf(v.errorType, status)
	switch {
	case v.kind == requestThrottled && bulk.NeverFits(reason):
		v.kind, v.final = requestSplit, true
	case v.kind == requestSplit && status == 413:
		v.final = true
	case v.kind == requestSplit && hasPrefix(reason, "no handler found for uri ["):
		v.kind = requestHoldAll // a wrong path is a 400
	}
	return v
}

func requestKindOf(errorType string, status int) requestKind {
	switch {
	case isThrottle(errorType):
		return requestThrottled
	case errorType == "cluster_block_exception" && status != 503:
		// The whole cluster is read-only. 503 is a cluster without a master, or
		// one that starts: an outage like others.
		return requestHoldAll
	case errorType == "security_exception" && status < 500:
		return requestCredentials
	}
	switch status {
	case 401, 403:
		return requestCredentials
	case 404, 405, 406, 415:
		return requestHoldAll
	case 408, 425: // a proxy gave up waiting for the body; too early
		return requestUnknown
	case 429:
		return requestThrottled
	}
	switch {
	case 300 <= status && status < 400:
		return requestHoldAll
	case 400 <= status && status < 500:
		// 400, 413, and what proxies refuse for reasons of their own, such as
		// 422: splitting finds out whether it is one record or all.
		return requestSplit
	}
	return requestUnknown // 500 and up; 2xx other than 200 do not come from _bulk
}

// itemKind is what to do with one action.
type itemKind uint8

const (
	// itemDone: it is settled with verdict.outcome.
	itemDone itemKind = iota + 1
	// itemConflict: a version above the one sent is stored (verdict.stored).
	// The source decides whether it is stale or foreign.
	itemConflict
	// itemLostRace: the document changed under an update. Send it again.
	itemLostRace
	// itemThrottled: nothing was done. Send it again later, and send less.
	itemThrottled
	// itemUnknown: it may have been done. Send it again.
	itemUnknown
	// itemHold: the cause is the target. All its actions wait; it is probed.
	itemHold
	// itemHoldCredentials is itemHold, and the credentials are read anew.
	itemHoldCredentials
	// itemSecondTry: it is refused. It gets one second try, in the target's
	// next request; then it is rejected.
	itemSecondTry
	// itemFailed: the server failed at it. Send it again, at most
	// retry.item_attempts times.
	itemFailed
	// itemReject: it can never be written.
	itemReject
)

// itemVerdict is what became of one action.
type itemVerdict struct {
	kind    itemKind
	outcome Outcome // itemDone
	stored  int64   // itemConflict
}

// tried is what is known of an action when its answer comes.
type tried struct {
	op          bulk.Op
	versionType bulk.VersionType
	version     int64
	refused     int // itemSecondTry verdicts before this answer
	failed      int // itemFailed verdicts before this answer
	// neighbours says that the target accepted another action in the same
	// answer, or since this action was tried before.
	neighbours bool
}

// judgeItem judges one item of a bulk answer. An action fails at most attempts
// times (retry.item_attempts) before it is rejected, or holds its target where
// nothing else was accepted.
func judgeItem(it *bulk.Item, a tried, attempts int) itemVerdict {
	// The error's type comes before the status: a flood-stage block is 429, a
	// closed index 400, a full queue 429 or 503.
	switch errorType := string(it.Type); {
	case errorType == "version_conflict_engine_exception":
		return judgeConflict(it, a)
	case mutantThrottled && isThrottle(errorType):
		return itemVerdict{kind: itemDone, outcome: Indexed}
	case isThrottle(errorType):
		return itemVerdict{kind: itemThrottled}
	case errorType == "security_exception":
		return itemVerdict{kind: itemHoldCredentials}
	case isTargetsFault(errorType, it.Reason):
		return itemVerdict{kind: itemHold}
	case isInterrupted(errorType):
		return itemVerdict{kind: itemUnknown}
	case errorType == "document_missing_exception":
		return itemVerdict{kind: itemReject}
	}
	if !it.Failed {
		if v := judgeSuccess(it, a.op); v.kind != 0 {
			return v
		}
	}
	switch s := it.Status; {
	case s == 429:
		return itemVerdict{kind: itemThrottled}
	case s == 401 || s == 403:
		return itemVerdict{kind: itemHoldCredentials}
	case 400 <= s && s < 500:
		return judgeRefused(a)
	case 502 <= s && s <= 504:
		return itemVerdict{kind: itemHold}
	}
	return judgeFailed(a, attempts)
}

// judgeSuccess judges an item without an error; kind 0: its status is none of
// a success.
func judgeSuccess(it *bulk.Item, op bulk.Op) itemVerdict {
	written := it.Status == 200 || it.Status == 201
	switch {
	case op == bulk.Delete && (written || it.Status == 404 && it.Result == bulk.NotFound):
		return itemVerdict{kind: itemDone, outcome: Deleted}
	case written && it.Result == bulk.Noop && (op == bulk.Index || op == bulk.Create):
		return itemVerdict{kind: itemDone, outcome: Ignored}
	case written:
		return itemVerdict{kind: itemDone, outcome: Indexed} // a noop of an update: it changes nothing
	}
	return itemVerdict{}
}

// judgeConflict judges a 409 on versions. In doubt it is a refusal: a conflict
// that is not understood is never swallowed.
func judgeConflict(it *bulk.Item, a tried) itemVerdict {
	switch a.op {
	case bulk.Update, bulk.Upsert:
		return itemVerdict{kind: itemLostRace}
	case bulk.Create:
		return itemVerdict{kind: itemDone, outcome: Stale} // the first wins, and may be our own first try
	}
	stored, sent, ok := bulk.ConflictVersions(it.Reason)
	switch {
	case !ok || a.versionType == bulk.Internal || sent != a.version || stored < sent:
		return judgeRefused(a)
	case stored == sent:
		return itemVerdict{kind: itemDone, outcome: Stale} // a repeat
	}
	return itemVerdict{kind: itemConflict, stored: stored}
}

// judgeRefused judges what the server says is the record's fault. The second
// try is for causes that pass by themselves, such as a mapping that was just
// being changed.
func judgeRefused(a tried) itemVerdict {
	if a.refused == 0 && !mutantSecond {
		return itemVerdict{kind: itemSecondTry}
	}
	return itemVerdict{kind: itemReject}
}

// judgeFailed judges what nobody explains.
func judgeFailed(a tried, attempts int) itemVerdict {
	switch {
	case a.failed+1 < attempts:
		return itemVerdict{kind: itemFailed}
	case a.neighbours:
		return itemVerdict{kind: itemReject}
	}
	return itemVerdict{kind: itemHold}
}

// isThrottle says that the server refused work that it has no room for:
// es_rejected_execution_exception, OpenSearch's rejected_execution_exception.
func isThrottle(errorType string) bool {
	return strings.HasSuffix(errorType, "rejected_execution_exception") || errorType == "circuit_breaking_exception"
}

// isTargetsFault says that an index, or the cluster, cannot take documents at
// present, whatever they hold. Where only the reason tells, it is compared
// from its beginning, which quotes no document.
func isTargetsFault(errorType string, reason bulk.Text) bool {
	switch errorType {
	case "cluster_block_exception", // disk, read-only, write block
		"index_closed_exception",
		"index_not_found_exception", // auto-create off; require_alias; a delete without a version
		"unavailable_shards_exception",
		"no_shard_available_action_exception",
		"process_cluster_event_timeout_exception", // an index to create, a mapping to change
		"master_not_discovered_exception",
		"not_master_exception":
		return true
	case "validation_exception":
		return hasPrefix(reason, "Validation Failed: 1: this action would add [") // maximum shards
	case "illegal_argument_exception":
		return hasPrefix(reason, "no write index is defined for alias [") ||
			hasPrefix(reason, "pipeline with id [") ||
			hasPrefix(reason, "only write ops with an op_type of create are allowed in data streams")
	}
	return false
}

func hasPrefix(t bulk.Text, prefix string) bool {
	return len(t) >= len(prefix) && string(t[:len(prefix)]) == prefix
}

// isInterrupted says that a node or a shard went away while it worked on the
// action.
func isInterrupted(errorType string) bool {
	switch errorType {
	case "node_closed_exception", "node_disconnected_exception", "node_not_connected_exception",
		"connect_transport_exception", "receive_timeout_transport_exception", "send_request_transport_exception",
		"already_closed_exception", "index_shard_closed_exception", "shard_not_found_exception",
		"shard_not_in_primary_mode_exception", "no_longer_primary_shard_exception":
		return true
	}
	return false
}

// errorTypeOf names an item's failure: the error's type, else http_403.
func errorTypeOf(it *bulk.Item) string {
	if errorType := it.Type.String(); errorType != "" {
		return errorType
	}
	return fmt.Sprintf("http_%d", it.Status)
}

// heldBy names what holds a target, or all writing: the error's type and, of a
// refusal of the credentials or for want of a right, whose reason quotes no
// document, the remedy.
func heldBy(errorType string, status int, reason string) string {
	if status == 401 {
		return errorType + ": the credentials are refused: correct the API key, or username and password"
	}
	if errorType != "security_exception" {
		return errorType
	}
	_, list, ok := strings.Cut(reason, "this action is granted by the index privileges [")
	if list, _, ok2 := strings.Cut(list, "]"); ok && ok2 {
		return errorType + ": the credentials' role must hold one of the privileges " + strings.ReplaceAll(list, ",", ", ") + " on it"
	}
	// OpenSearch names all that is missing for the request's actions on the index.
	_, list, ok = strings.Cut(reason, "no permissions for [")
	if list, _, ok2 := strings.Cut(list, "] and User ["); ok && ok2 && list != "" {
		return errorType + ": the credentials' role must allow " + list + " on it"
	}
	return errorType
}
