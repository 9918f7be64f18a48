#define _GNU_SOURCE
#include "attn_inspect.h"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
static double now(void){struct timespec t;clock_gettime(CLOCK_MONOTONIC,&t);return t.tv_sec*1e9+t.tv_nsec;}
static void one(attn_context*ctx,const char*what,int dt,int b,int hq,int hk,int sq,int skv,int d,int causal,int bias,int vary){
    attn_problem p; attn_plan*plan; attn_error why;
    attn_problem_init(&p); p.dtype=dt;p.batch=b;p.heads_q=hq;p.heads_kv=hk;p.seq_q=sq;p.seq_kv=skv;p.head_dim=d;p.causal=causal;p.bias=bias;
    if(attn_plan_create(ctx,&p,NULL,&plan,&why)){printf("%s: %s\n",what,why.text);return;}
    char line[200]; snprintf(line,200,"%s",attn_plan_variant(plan)); attn_plan_destroy(plan);
    double best=1e18; 
    for(int r=0;r<7;r++){ double t=now(); int n=2000; for(int i=0;i<n;i++){ if(vary) p.seq_kv=skv+i%64; attn_plan_create(ctx,&p,NULL,&plan,&why); attn_plan_destroy(plan);} t=(now()-t)/n; if(t<best)best=t;}
    printf("%-28s %-45s %8.0f ns\n",what,line,best);
}
int main(int argc,char**argv){
    attn_options o; attn_options_init(&o); attn_context*ctx; attn_error why;
    o.device=argc>1?argv[1]:"cpu"; o.driver=argc>2?argv[2]:NULL;
    if(attn_open(&o,&ctx,&why)){puts(why.text);return 1;}
    int h=argc>1;
    one(ctx,"canonical",h,2,8,8,512,512,64,0,0,0);
    one(ctx,"canonical causal",h,2,8,8,512,512,64,1,0,0);
    one(ctx,"decode B1 8192",h,1,32,8,1,8192,128,0,0,1);
    one(ctx,"decode B64 300",h,64,32,8,1,300,128,0,0,1);
    one(ctx,"prefill 8192",h,2,16,16,8192,8192,128,1,0,0);
    one(ctx,"bias",h,1,16,16,2048,2048,64,0,1,0);
    one(ctx,"d256",h,1,8,8,2048,2048,256,0,0,0);
    one(ctx,"chunk 512x8192",h,1,32,8,512,8192,128,2,0,0);
    one(ctx,"d72",h,1,8,8,729,729,72,0,0,0);
    attn_close(ctx); return 0;}
