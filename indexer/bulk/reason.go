package bulk

import "strconv"

// ConflictVersions reads, from the reason of a version_conflict_engine_exception
// about an external version, the version that is stored and the one that was
// sent. All versions of Elasticsearch and OpenSearch use the same words:
//
//	[ID]: version conflict, current version [10] is higher or equal to the one provided [10]
//	[ID]: version conflict, current version [10] is higher than the one provided [9]
//
// An id may hold brackets and this very text, so the reason is read from its
// end. It is not ok for any other reason: an existing document met by a create,
// a document that changed under an update.
func ConflictVersions(reason Text) (stored, sent int64, ok bool) {
	const before = "]: version conflict, current version [#] is higher "
	if !ends(reason, before+"or equal to the one provided [#]", &stored, &sent) &&
		!ends(reason, before+"than the one provided [#]", &stored, &sent) {
		return 0, 0, false
	}
	return stored, sent, true
}

// NeverFits says, from the reason of a rejected execution, that the request
// alone is larger than all that the server lets requests take together: it
// will be rejected however idle the server is.
//
//	rejected execution of coordinating operation [coordinating_and_primary_bytes=0, replica_bytes=0, all_bytes=0, coordinating_operation_bytes=307488, max_coordinating_bytes=204800]
func NeverFits(reason Text) bool {
	const before = "coordinating_operation_bytes=#, max_coordinating_"
	var operation, limit int64
	return (ends(reason, before+"bytes=#]", &operation, &limit) ||
		ends(reason, before+"and_primary_bytes=#]", &operation, &limit)) && operation > limit
}

// ends says whether t ends with the pattern, in which each # stands for a
// decimal number of 63 bits.
func ends(t []byte, pattern string, numbers ...*int64) bool {
	for p := len(pattern) - 1; p >= 0; p-- {
		if pattern[p] != '#' {
			if len(t) == 0 || t[len(t)-1] != pattern[p] {
				return false
			}
			t = t[:len(t)-1]
			continue
		}
		from := len(t)
		for from > 0 && '0' <= t[from-1] && t[from-1] <= '9' {
			from--
		}
		n, err := strconv.ParseInt(string(t[from:]), 10, 64)
		if err != nil {
			return false
		}
		*numbers[len(numbers)-1] = n
		numbers, t = numbers[:len(numbers)-1], t[:from]
	}
	return true
}
