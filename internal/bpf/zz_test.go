package bpf_test
import ("testing";"fmt";"os";"path/filepath";"syscall";"github.com/cilium/ebpf";"golang.org/x/sys/unix";"mete.dev/mete/internal/bpf")
func TestZZ(t *testing.T){
 c,err:=ebpf.EnableStats(unix.BPF_STATS_RUN_TIME); if err!=nil{t.Fatal(err)}
 defer c.Close()
 k:=need(t,config(bpf.All))
 d:=group(t,mount(t,"")); b:=group(t,mount(t,"blkio")); ca:=group(t,mount(t,"cpuacct"))
 attach(t,k,d)
 kid:=spawn(t,[]string{ca},nil,"forks","300"); kid.say(); kid.hear(); kid.say(); kid.end()
 kid=spawn(t,[]string{b},nil,"write",filepath.Join(disk(t),"f"),fmt.Sprint(64<<20),"direct"); kid.say(); kid.hear(); kid.say(); kid.end()
 attr := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
 kid=spawn(t,[]string{d},attr,"tcp",fmt.Sprint(256<<20),"127.0.0.1:0"); kid.say(); kid.hear(); kid.say(); kid.end()
 for i:=range 300 { x:=filepath.Join(ca,fmt.Sprint(i)); os.Mkdir(x,0755); remove(t,x)}
 k.Tasks(func(*bpf.Task)bool{return true})
 w:=walker(t,k,mount(t,"cpuacct"),false); for range 100 { w.Read() }
 for id:=ebpf.ProgramID(0);; { id,err=ebpf.ProgramGetNextID(id); if err!=nil{break}
  p,err:=ebpf.NewProgramFromID(id); if err!=nil{continue}
  s,_:=p.Stats(); i,_:=p.Info(); if s.RunCount>0{ fmt.Println(i.Name,s.RunCount,float64(s.Runtime.Nanoseconds())/float64(s.RunCount))}; p.Close() }
 fmt.Println(k.Lost(),k.Full())
}
