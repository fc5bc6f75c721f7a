package document
import ("testing";"github.com/twmb/franz-go/pkg/kgo";"time";"strings")
func BenchmarkMap(b *testing.B){
 m,err:=New(Config{Index:"events"},nil,[]string{"events"},false)
 if err!=nil{b.Fatal(err)}
 r:=m.Rules("events")
 rec:=&kgo.Record{Topic:"events",Partition:3,Offset:12345,Key:[]byte("customer-000123"),Value:[]byte(`{"message":"`+strings.Repeat("hello world ",85)+`"}`),Timestamp:time.Now()}
 var out Result
 b.ReportAllocs()
 for b.Loop(){ r.Map(rec,1,&out)}
 if out.Verdict!=Send{b.Fatal(out.Type)}
}
