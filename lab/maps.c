#define _GNU_SOURCE
#include "attn_inspect.h"
#include <stdio.h>
#include <string.h>
#include <time.h>
static double now(void){struct timespec t;clock_gettime(CLOCK_MONOTONIC,&t);return t.tv_sec*1e9+t.tv_nsec;}
int main(void){
    attn_options o; attn_options_init(&o); attn_context*ctx; attn_error why; o.device="cuda";
    if(attn_open(&o,&ctx,&why)){puts(why.text);return 1;}
    int (*encode)(void*,int,uint32_t,void*,const uint64_t*,const uint64_t*,const uint32_t*,const uint32_t*,int,int,int,int); int(*replace)(void*,void*); int(*cur)(void**);int(*dev)(int*);int(*retain)(void**,int);int(*set)(void*);
    void*f;
#define G(n,p) attn_driver_function(ctx,n,&f,&why); memcpy(&p,&f,8);
    G("cuTensorMapEncodeTiled",encode) G("cuTensorMapReplaceAddress",replace) G("cuCtxGetCurrent",cur) G("cuCtxGetDevice",dev) G("cuDevicePrimaryCtxRetain",retain) G("cuCtxSetCurrent",set)
    void*c; retain(&c,0); set(c);
    _Alignas(64) unsigned char m[128]; uint64_t d[4]={128,8192,8,2}, st[3]={256,256*8192ull,256*8192ull*8}; uint32_t box[4]={64,128,1,1},es[4]={1,1,1,1};
    for(int r=0;r<3;r++){
    double t=now(); for(int i=0;i<100000;i++) encode(m,6,4,(void*)(uintptr_t)(1<<20),d,st,box,es,0,3,2,0); printf("encode %.0f ns ",(now()-t)/1e5);
    t=now(); for(int i=0;i<100000;i++) replace(m,(void*)(uintptr_t)(1<<21)); printf("replace %.0f ns ",(now()-t)/1e5);
    t=now(); int dd; for(int i=0;i<100000;i++) {cur(&c);dev(&dd);} printf("current+device %.0f ns\n",(now()-t)/1e5);}
    return 0;}
